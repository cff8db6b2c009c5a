"""Contexts: where code runs and what it leaves behind for the next code.

A context is one process (process.py) and a line of executions that wait for it. It outlives its
process: one that has died is started anew by the next execution or by a restart, with nothing of what
it knew. The default context of a language is made when it is first needed and has the language's name
as its id.

    idle --execute--> running --done--> idle
                         |--client gone--> interrupted --done--> idle
                         |                     `--10 s--> stuck: refuses code until done or restarted
                         `--died--> dead --execute or restart--> idle

An execution whose client has gone is interrupted, with one exception: when the machine itself was
forked, the copy's clients are elsewhere, and what runs in the copy goes on unheard.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import sys
import time
from typing import Any, Optional

from languages import Account, account, canonical, default_directory
from process import ContextProcess
from wire import Refused

CONTEXTS_MAX = 64
WAITING_MAX = 64
EVENTS_AHEAD_MAX = 32
STUCK_AFTER_S = 10.0
INSIST_AFTER_S = (0.25, 0.5, 1.0, 2.0, 4.0)
VARIABLES_S_MAX = 5.0
TEXT_CHARS_MAX = 32 * 1024
EVENTS = {"number_of_executions", "stdout", "stderr", "result", "error"}


class Execution:
    """What one piece of code reports. Read by the client's side with `next`, until None."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Optional[dict[str, Any]]] = asyncio.Queue(EVENTS_AHEAD_MAX)
        self._heard = True
        self.abandoned = False
        """It is not wanted any more: if it has not begun, it does not."""

    async def put(self, event: Optional[dict[str, Any]]) -> None:
        """Hand an event over; waits while the client is slow, and drops it when there is none."""
        if self._heard:
            await self._queue.put(event)

    async def next(self) -> Optional[dict[str, Any]]:
        """The next event, None after the last."""
        return await self._queue.get()

    def unhear(self) -> None:
        """Nobody reads any more: whoever waits to hand an event over goes on."""
        self._heard = False
        while not self._queue.empty():
            self._queue.get_nowait()
        self._queue.put_nowait(None)


def _pieces(event: dict[str, Any]) -> list[dict[str, Any]]:
    """An event in parts that are not too long; only output can be parted."""
    text = event.get("text")
    if event["type"] not in ("stdout", "stderr"):
        return [event]
    if not isinstance(text, str):
        return []
    event = {"type": event["type"], "timestamp": event.get("timestamp") or time.time_ns()}
    starts = range(0, len(text), TEXT_CHARS_MAX)
    return [{**event, "text": text[start : start + TEXT_CHARS_MAX]} for start in starts]


class Context:
    """One context."""

    def __init__(self, id: str, language: str, cwd: str, who: Account, python: Optional[str]) -> None:
        self.id = id
        self.language = language
        self.cwd = cwd
        self._who = who
        self._python = python
        self._turn = asyncio.Lock()
        self._starting = asyncio.Lock()
        self._waiting = 0
        self._process: Optional[ContextProcess] = None
        self._execution: Optional[Execution] = None
        self._stuck = False
        self._insisting: Optional[asyncio.Task[None]] = None
        self._why_died: Optional[str] = None
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._asked = 0
        self.deleted = False

    def describe(self) -> dict[str, Any]:
        """What the protocol says about a context."""
        return {"id": self.id, "language": self.language, "cwd": self.cwd}

    async def ready(self) -> ContextProcess:
        """Its process, started if there is none that lives."""
        async with self._starting:
            if self.deleted:
                raise Refused(404, f"the context {self.id} was deleted")
            if self._process is None or self._process.ended.is_set():
                process = ContextProcess(self.language, self._receive)
                await process.start(self._python, self.cwd, self._who)
                self._process = process
            return self._process

    def admit(self, env: dict[str, str]) -> None:
        """Refuse an execution that would not get its turn."""
        if self._stuck:
            text = f"the context {self.id} does not react to the interrupt of an earlier execution; restart it"
            raise Refused(503, text)
        if self._waiting >= WAITING_MAX:
            raise Refused(429, f"{WAITING_MAX} executions already wait for the context {self.id}")
        for name in env:
            bad = not name or "=" in name or "\0" in name or "\0" in env[name]
            if bad or (self.language == "bash" and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)):
                raise Refused(400, f"{name[:80]!r} is no name of a variable of the environment, or its value has a NUL")

    async def execute(self, code: str, env: dict[str, str], execution: Execution) -> None:
        """Run code when it is its turn, to its end. Events go to `execution`, the last one is None.

        Cancelled before its turn, it never runs; afterwards it is interrupted.
        """
        self._waiting += 1
        try:
            await self._turn.acquire()
        finally:
            self._waiting -= 1
        self._execution = execution
        self._why_died = None
        self._done = asyncio.Event()
        try:
            process = await self.ready()
            if execution.abandoned:
                return
            await process.execute(code, env)
            if process.ended.is_set():
                await self._report_death(process.status)
            await self._done.wait()
        except Refused as refusal:
            await execution.put({"type": "error", "name": "ContextDied", "value": refusal.text, "traceback": ""})
            await execution.put(None)
        finally:
            self._execution = None
            self._stuck = False
            self._turn.release()

    async def _receive(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        if kind == "answer":
            answer = self._answers.pop(event.get("id", 0), None)
            if answer is not None and not answer.done():
                answer.set_result(event)
        elif self._execution is None:
            pass  # Output of something in the background, after the code that started it.
        elif kind == "done":
            await self._finish()
        elif kind == "died":
            await self._report_death(event["status"])
        elif kind in EVENTS:
            for piece in _pieces(event):
                if self._execution is not None:
                    await self._execution.put(piece)

    async def _finish(self) -> None:
        if self._execution is not None and not self._done.is_set():
            await self._execution.put(None)
            self._done.set()

    async def _report_death(self, status: Optional[int]) -> None:
        if self._execution is None or self._done.is_set():
            return
        if self._why_died is not None:
            name, value = "ContextDied", self._why_died
        elif self.language == "bash" and status is not None and status >= 0:
            name, value = "ExitError", str(status)
        elif status is not None and status < 0:
            name, value = "ContextDied", f"the context was ended by signal {-status}"
        else:
            name, value = "ContextDied", f"the context ended with status {status}"
        traceback = "The context has lost what it knew; the next code starts it anew."
        await self._execution.put({"type": "error", "name": name, "value": value, "traceback": traceback})
        await self._finish()

    async def interrupt(self) -> bool:
        """Interrupt what runs; says whether anything did."""
        execution, process = self._execution, self._process
        if execution is None or process is None:
            return False
        await process.interrupt()
        if self.language == "bash":
            if self._insisting is not None:
                self._insisting.cancel()
            self._insisting = asyncio.create_task(self._insist(process, execution))
        return True

    async def _insist(self, process: ContextProcess, execution: Execution) -> None:
        """Interrupt a shell again, as one does at a terminal: it goes on with its next command when the one that it
        waited for, or had not quite started, took no notice."""
        for pause in INSIST_AFTER_S:
            await asyncio.sleep(pause)
            if not self.runs(execution):
                return
            await process.interrupt()

    def runs(self, execution: Execution) -> bool:
        """Whether an execution has its turn."""
        return self._execution is execution

    async def abandon(self, execution: Execution) -> None:
        """The client of an execution has gone: interrupt it, and note if that does not help."""
        execution.abandoned = True
        execution.unhear()
        await self.interrupt()
        await asyncio.sleep(STUCK_AFTER_S)
        if self._execution is execution:
            self._stuck = True
            print(f"context {self.id}: no reaction to an interrupt in {STUCK_AFTER_S} s", file=sys.stderr)

    async def stop(self, why: str) -> None:
        """End its process."""
        async with self._starting:
            self._why_died = why
            if self._process is None:
                return
            try:
                await asyncio.wait_for(self._process.kill(), STUCK_AFTER_S)
            except asyncio.TimeoutError:
                if self._execution is not None:
                    self._execution.unhear()  # Its client reads too slowly to wait for.
                await self._process.kill()
            self._process = None

    async def variables(self) -> dict[str, Any]:
        """Names, types and short values of what user code has made."""
        if self.language != "python":
            raise Refused(501, f"variables of a context for {self.language} cannot be listed")
        process = await self.ready()
        self._asked += 1
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[self._asked] = answer
        try:
            await process.send({"op": "variables", "id": self._asked})
            found = await asyncio.wait_for(answer, VARIABLES_S_MAX)
        except asyncio.TimeoutError:
            raise Refused(504, f"the context {self.id} is too busy to list its variables") from None
        finally:
            self._answers.pop(self._asked, None)
        return {"variables": found.get("variables", []), "truncated": bool(found.get("truncated"))}


class Contexts:
    """All contexts."""

    def __init__(self, python: Optional[str]) -> None:
        self._python = python
        self._who = account()
        self._all: dict[str, Context] = {}

    def list(self) -> list[dict[str, Any]]:
        """What there is."""
        return [context.describe() for context in self._all.values()]

    def get(self, id: str) -> Context:
        """The context with an id."""
        context = self._all.get(id)
        if context is None:
            raise Refused(404, f"there is no context {id[:80]!r}")
        return context

    async def create(self, language: Optional[str], cwd: Optional[str]) -> Context:
        """Make a context with an id of its own."""
        name = canonical(language)
        directory = cwd or default_directory(self._who)
        if not os.path.isdir(directory):
            raise Refused(400, f"the directory {directory} does not exist")
        return await self._add(secrets.token_hex(12), name, directory)

    async def default(self, language: Optional[str]) -> Context:
        """The default context of a language."""
        name = canonical(language)
        known = self._all.get(name)
        if known is not None:
            await known.ready()
            return known
        return await self._add(name, name, default_directory(self._who))

    async def _add(self, id: str, language: str, cwd: str) -> Context:
        if len(self._all) >= CONTEXTS_MAX:
            raise Refused(429, f"there are already {CONTEXTS_MAX} contexts; delete one")
        context = Context(id, language, cwd, self._who, self._python)
        self._all[id] = context
        try:
            await context.ready()
        except Refused:
            self._all.pop(id, None)
            raise
        return context

    async def restart(self, id: str) -> Context:
        """Give a context a new process."""
        context = self.get(id)
        await context.stop("the context was restarted")
        await context.ready()
        return context

    async def delete(self, id: str) -> None:
        """End a context."""
        context = self.get(id)
        context.deleted = True
        del self._all[id]
        await context.stop("the context was deleted")
