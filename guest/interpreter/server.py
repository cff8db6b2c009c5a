"""The code interpreter's server: runs code in contexts and streams what comes of it.

Started in the guest as `python3 -I server.py`; listens on the loopback interface. Needs the standard
library only; what a language needs is looked for when it is used.

    POST   /execute                     code in a context; answers lines of JSON until end_of_execution
    GET    /contexts                    list
    POST   /contexts                    create
    DELETE /contexts/{id}               delete
    POST   /contexts/{id}/restart       new process, nothing of the old one
    POST   /contexts/{id}/interrupt     stop what runs
    GET    /contexts/{id}/variables     what Python code has made
    GET    /health                      OK

Signal 48 is how the guest's agent tells a process that its machine is a new copy. The server counts
these, and does not take the end of an older connection for a client that has lost interest.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from typing import Any, Optional

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from contexts import Context, Contexts, Execution  # noqa: E402
from wire import ClientGone, Connection, Refused, Request, Stream  # noqa: E402

CONNECTIONS_MAX = 512
KEEPALIVE_S = 5.0
COPY_SIGNAL = 48
SANDBOX_ENVIRONMENT = "/run/ramet/env.json"


def _text(body: dict[str, Any], name: str) -> Optional[str]:
    """A text of a request; null is as good as absent."""
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise Refused(400, f"{name} is no text")
    return value or None


def _sandbox_environment() -> dict[str, str]:
    """Variables of this sandbox, as the agent keeps them. Contexts may be older than it: they are inherited in a fork."""
    try:
        with open(SANDBOX_ENVIRONMENT, encoding="utf-8") as file:
            value = json.load(file)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _environment(body: dict[str, Any]) -> dict[str, str]:
    value = body.get("env_vars")
    if value is None:
        value = {}
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise Refused(400, "env_vars is no object of texts")
    return {**_sandbox_environment(), **value}


class Server:
    """Answers requests."""

    def __init__(self, python: Optional[str]) -> None:
        self.contexts = Contexts(python)
        self.copies = 0
        """How often this machine turned out to be a new copy."""
        self._connections = 0
        self._background: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """All requests of one connection."""
        connection = Connection(reader, writer)
        self._connections += 1
        try:
            if self._connections > CONNECTIONS_MAX:
                return
            keep_alive = True
            while keep_alive:
                keep_alive = False
                try:
                    request = await connection.request()
                    if request is None:
                        return
                    keep_alive = request.keep_alive
                    await self._answer(connection, request)
                except Refused as refusal:
                    await connection.answer_text(refusal.status, refusal.text)
        except ClientGone:
            return
        finally:
            self._connections -= 1
            await connection.close()

    async def _answer(self, connection: Connection, request: Request) -> None:
        match [request.method, *request.path.strip("/").split("/")]:
            case ["GET", "health"]:
                await connection.answer_text(200, "OK")
            case ["POST", "execute"]:
                await self._execute(connection, request.json())
            case ["GET", "contexts"]:
                await connection.answer_json(self.contexts.list())
            case ["POST", "contexts"]:
                body = request.json()
                made = await self.contexts.create(_text(body, "language"), _text(body, "cwd"))
                await connection.answer_json(made.describe())
            case ["DELETE", "contexts", id]:
                await self.contexts.delete(id)
                await connection.answer(204, b"")
            case ["POST", "contexts", id, "restart"]:
                context = await self.contexts.restart(id)
                await connection.answer_json(context.describe())
            case ["POST", "contexts", id, "interrupt"]:
                await connection.answer_json({"interrupted": await self.contexts.get(id).interrupt()})
            case ["GET", "contexts", id, "variables"]:
                await connection.answer_json(await self.contexts.get(id).variables())
            case _:
                raise Refused(404, f"there is no {request.method} {request.path[:200]}")

    async def _execute(self, connection: Connection, body: dict[str, Any]) -> None:
        code, id, language = _text(body, "code"), _text(body, "context_id"), _text(body, "language")
        env = _environment(body)
        if id and language:
            raise Refused(400, "only one of context_id and language can be given")
        context = self.contexts.get(id) if id else await self.contexts.default(language)
        context.admit(env)
        copies = self.copies
        execution = Execution()
        running = asyncio.create_task(context.execute(code or "", env, execution))
        self._keep(running)
        gone = asyncio.create_task(connection.gone())
        try:
            stream = await connection.stream()
            await _relay(stream, execution, gone)
        except ClientGone:
            if copies == self.copies:
                self._keep(asyncio.create_task(_leave(context, execution, running)))
            else:
                execution.unhear()
            raise
        finally:
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._background.add(task)
        task.add_done_callback(self._background.discard)


async def _leave(context: Context, execution: Execution, running: asyncio.Task[None]) -> None:
    """Stop an execution whose client has gone: it never begins, or it is interrupted."""
    if not context.runs(execution):
        execution.unhear()
        running.cancel()
    else:
        await context.abandon(execution)


async def _relay(stream: Stream, execution: Execution, gone: asyncio.Task[None]) -> None:
    """Write an execution's events to its client, and a sign of life when there are none."""
    upcoming: Optional[asyncio.Task[Optional[dict[str, Any]]]] = None
    try:
        while True:
            upcoming = upcoming or asyncio.create_task(execution.next())
            await asyncio.wait({upcoming, gone}, timeout=KEEPALIVE_S, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                raise ClientGone
            if not upcoming.done():
                await stream.line({"type": "keepalive"})
                continue
            event, upcoming = upcoming.result(), None
            if event is None:
                break
            await stream.line(event)
        await stream.line({"type": "end_of_execution"})
        await stream.end()
    finally:
        if upcoming is not None:
            upcoming.cancel()


def _heed_signals() -> None:
    """Heed what whoever started the server ignores (a shell ignores SIGINT for what it starts with `&`): contexts and
    all that they start inherit it, and could not be interrupted."""
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGTSTP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


async def _main(host: str, port: int, python: Optional[str]) -> None:
    server = Server(python)

    def copied(_number: int, _frame: object) -> None:
        server.copies += 1

    # A plain handler, not one of the event loop: it has run before the loop sees any connection end.
    signal.signal(COPY_SIGNAL, copied)
    listener = await asyncio.start_server(server.serve, host, port, backlog=128)
    print(f"listening on {listener.sockets[0].getsockname()[1]}", flush=True)
    async with listener:
        await listener.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Runs code in contexts and streams what comes of it.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=49999, help="0 takes a free one and prints it")
    parser.add_argument("--python", help="interpreter of Python contexts, instead of the server's own")
    arguments = parser.parse_args()
    _heed_signals()
    try:
        asyncio.run(_main(arguments.host, arguments.port, arguments.python))
    except KeyboardInterrupt:
        pass
