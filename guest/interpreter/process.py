"""A context's process: its pipes, its events, its end.

    requests  server -> context   lines of JSON (bash: commands)
    events    context -> server   lines of JSON
    stdout, stderr                what the context and its children write to descriptors 1 and 2

Events are delivered in the order in which they happened, as far as it can be known: before an event
of a context that does not empty its pipes itself, what is in them is delivered. A context that does
(Python) is helped only when its pipes stay full, because code that keeps the interpreter's lock
would otherwise wait forever for a reader that cannot run.

Nothing is kept: whoever receives events decides how fast they come, and a full pipe makes the
context wait.
"""

from __future__ import annotations

import array
import asyncio
import codecs
import fcntl
import json
import os
import shlex
import signal
import termios
import time
from typing import Any, Awaitable, Callable, Optional

from languages import HERE, Account, environment, launch
from wire import Refused

EVENT_BYTES_MAX = 64 * 1024 * 1024
PIECE_BYTES_MAX = 32 * 1024
START_S_MAX = 120.0
RELIEF_S = 0.5
STREAMS = ("stdout", "stderr")

Receive = Callable[[dict[str, Any]], Awaitable[None]]


def _waiting(fd: int) -> int:
    """How many bytes wait in a pipe."""
    count = array.array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, count)
    return count[0]


def _owner(who: Account) -> dict[str, Any]:
    """How a process is started as somebody else."""
    if who.uid is None or who.gid is None:
        return {}
    return {"user": who.uid, "group": who.gid, "extra_groups": os.getgrouplist(who.name, who.gid)}


async def _readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(fd, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(fd)


class ContextProcess:
    """One process of a context. Made by `start`; never used again once `ended` is set."""

    def __init__(self, language: str, receive: Receive) -> None:
        self.language = language
        self.ended = asyncio.Event()
        self.status: Optional[int] = None
        self.failure: Optional[str] = None
        """Why it could not start, in its own words."""
        self._receive = receive
        self._ready = asyncio.Event()
        self._order = asyncio.Lock()
        """Held while something is delivered, so that nothing overtakes it."""
        self._pipes: dict[str, int] = {}
        self._decoders: dict[str, codecs.IncrementalDecoder] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._heard = 0
        self._count = 0

    async def start(self, python: Optional[str], cwd: str, who: Account) -> None:
        """Start the process and wait until it is ready for code."""
        requests, events = os.pipe(), os.pipe()
        outputs = {name: os.pipe() for name in STREAMS}
        theirs = [requests[0], events[1]]
        try:
            read_ends = {name: ends[0] for name, ends in outputs.items()}
            plan = launch(self.language, python, {"requests": requests[0], "events": events[1], **read_ends})
            given = [events[1]] if self.language == "bash" else list(theirs)
            given += read_ends.values() if plan.drains_itself else []
            self._process = await asyncio.create_subprocess_exec(
                *plan.argv,
                stdin=requests[0] if self.language == "bash" else asyncio.subprocess.DEVNULL,
                stdout=outputs["stdout"][1],
                stderr=outputs["stderr"][1],
                pass_fds=given,
                cwd=cwd,
                env={**environment(who), "PS1": ""} if self.language == "bash" else environment(who),
                start_new_session=True,
                **_owner(who),
            )
        except (OSError, Refused) as error:
            for fd in (*requests, *events, *(end for ends in outputs.values() for end in ends)):
                os.close(fd)
            if isinstance(error, Refused):
                raise
            raise Refused(500, f"a context for {self.language} does not start: {error}") from None
        for fd in (*theirs, *(ends[1] for ends in outputs.values())):
            os.close(fd)
        await self._attach(requests[1], events[0], read_ends, plan.drains_itself)
        if self.language == "bash":
            script = shlex.quote(str(HERE / "bash_context.sh"))
            await self._write(f"source {script} {events[1]} </dev/null\n".encode())
        await self._wait_ready()

    async def _attach(self, requests: int, events: int, outputs: dict[str, int], drains_itself: bool) -> None:
        loop = asyncio.get_running_loop()
        self._event_reader = asyncio.StreamReader(limit=EVENT_BYTES_MAX)
        self._event_transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self._event_reader), os.fdopen(events, "rb", 0)
        )
        transport, protocol = await loop.connect_write_pipe(
            asyncio.streams.FlowControlMixin, os.fdopen(requests, "wb", 0)
        )
        self._requests = asyncio.StreamWriter(transport, protocol, None, loop)
        for name, fd in outputs.items():
            os.set_blocking(fd, False)
            self._pipes[name] = fd
            self._decoders[name] = codecs.getincrementaldecoder("utf-8")("replace")
        self._drains_itself = drains_itself
        work = [self._read_events(), self._wait_end()]
        work += [self._relieve()] if drains_itself else [self._pump(name) for name in outputs]
        self._tasks = [asyncio.create_task(task) for task in work]

    async def _wait_ready(self) -> None:
        waits = [asyncio.create_task(event.wait()) for event in (self._ready, self.ended)]
        await asyncio.wait(waits, timeout=START_S_MAX, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if self._ready.is_set() and self.failure is None:
            return
        status = self.status
        await self.kill()
        if self.failure is not None:
            raise Refused(501, self.failure)
        why = "takes too long to start" if status is None else f"ended at once, with status {status}"
        raise Refused(500, f"the context for {self.language} {why}")

    async def execute(self, code: str, env: dict[str, str]) -> None:
        """Send code; its events come until one of type `done`."""
        if self.language == "bash":
            self._count += 1
            await self._receive({"type": "number_of_executions", "execution_count": self._count})
            words = " ".join(shlex.quote(word) for pair in env.items() for word in pair)
            text = f"__ramet_begin {words}\neval {shlex.quote(code)} </dev/null\n__ramet_end $?\n"
            await self._write(text.encode("utf-8", "replace"))
        else:
            await self.send({"op": "execute", "code": code, "env": env})

    async def send(self, message: dict[str, Any]) -> None:
        """Send a message that is no code."""
        await self._write(json.dumps(message).encode() + b"\n")

    async def _write(self, data: bytes) -> None:
        try:
            self._requests.write(data)
            await self._requests.drain()
        except (ConnectionError, RuntimeError):
            pass  # It has ended, which whoever waits for its events is told.

    async def interrupt(self) -> None:
        """Send SIGINT to the process and to all that it has started in the foreground."""
        if self.language in ("javascript", "typescript"):
            await self.send({"op": "interrupt"})
        self._signal(signal.SIGINT)

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):
            pass

    async def kill(self) -> None:
        """End the process and what it has started in its session, and wait for it."""
        self._signal(signal.SIGKILL)
        await self.ended.wait()

    async def _wait_end(self) -> None:
        self.status = await self._process.wait()
        reader, heard = self._tasks[0], -1
        while heard != self._heard or self._order.locked():
            heard = self._heard
            if (await asyncio.wait([reader], timeout=RELIEF_S))[0]:
                break  # Otherwise a child of the context still has the pipe open.
        async with self._order:
            await self._deliver_waiting()
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        await asyncio.gather(*(t for t in self._tasks if t is not asyncio.current_task()), return_exceptions=True)
        for fd in self._pipes.values():
            os.close(fd)
        self._pipes.clear()
        self._event_transport.close()
        self._requests.close()
        self.ended.set()
        await self._receive({"type": "died", "status": self.status})

    async def _read_events(self) -> None:
        while True:
            try:
                line = await self._event_reader.readline()
            except ValueError:
                self._signal(signal.SIGKILL)  # An event without end: whatever this is, it is not the context.
                return
            if not line:
                return
            self._heard += 1
            try:
                event = json.loads(line)
                kind = event["type"]
            except (ValueError, KeyError, TypeError, RecursionError):
                continue  # User code wrote to the descriptor.
            async with self._order:
                if not self._drains_itself:
                    await self._deliver_waiting()
                if kind in ("ready", "failed"):
                    self.failure = str(event.get("reason")) if kind == "failed" else None
                    self._ready.set()
                else:
                    await self._receive(event)

    async def _pump(self, name: str) -> None:
        while True:
            await _readable(self._pipes[name])
            async with self._order:
                if await self._deliver(name, PIECE_BYTES_MAX) == 0:
                    return

    async def _relieve(self) -> None:
        while True:
            heard, before = self._heard, {name: _waiting(fd) for name, fd in self._pipes.items()}
            await asyncio.sleep(RELIEF_S)
            stuck = [n for n, fd in self._pipes.items() if before[n] and before[n] <= _waiting(fd)]
            if stuck and heard == self._heard:
                async with self._order:
                    await self._deliver_waiting()

    async def _deliver_waiting(self) -> None:
        """Deliver what waits in the pipes now, and not what is written meanwhile."""
        for name, fd in self._pipes.items():
            count = _waiting(fd)
            while count > 0:
                read = await self._deliver(name, min(count, PIECE_BYTES_MAX))
                if not read:
                    break
                count -= read

    async def _deliver(self, name: str, size: int) -> Optional[int]:
        """Deliver at most `size` bytes of a pipe: 0 at its end, None if nothing waits in it."""
        try:
            data = os.read(self._pipes[name], size)
        except BlockingIOError:
            return None
        text = self._decoders[name].decode(data, final=not data)
        if text:
            await self._receive({"type": name, "text": text, "timestamp": time.time_ns()})
        return len(data)
