"""HTTP/1.1 as the interpreter's server needs it: one request after the other on a connection.

Reads requests with a bound on everything, writes whole answers and chunked streams, and notices
during a stream that the client has gone. It knows nothing about contexts. It refuses request
bodies in forms other than a length or chunks.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Optional

HEAD_BYTES_MAX = 64 * 1024
BODY_BYTES_MAX = 32 * 1024 * 1024
IDLE_S_MAX = 600.0
"""How long a connection may stay open between requests."""
BODY_S_MAX = 60.0
STALL_S_MAX = 300.0
"""How long a client may leave a stream unread."""


class Refused(Exception):
    """A request that is answered with a status and one line of text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class ClientGone(Exception):
    """The connection has ended, or nothing is read from it any more."""


@dataclass
class Request:
    """A request that was read completely."""

    method: str
    path: str
    body: bytes
    keep_alive: bool

    def json(self) -> dict[str, Any]:
        """The body as an object; an empty body is an empty object."""
        if not self.body.strip():
            return {}
        try:
            value = json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise Refused(400, f"the body is no JSON: {error}") from None
        if not isinstance(value, dict):
            raise Refused(400, "the body is no JSON object")
        return value


class Connection:
    """One client's connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._early = b""
        """What came while a stream was written: the beginning of the next request."""

    async def request(self) -> Optional[Request]:
        """The next request; None when the client has none."""
        try:
            head = await asyncio.wait_for(self._until(b"\r\n\r\n"), IDLE_S_MAX)
        except (asyncio.IncompleteReadError, asyncio.TimeoutError, ConnectionError):
            return None
        lines = head.decode("latin-1").split("\r\n")
        parts = lines[0].split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            raise Refused(400, "this is no HTTP/1.1 request")
        headers: dict[str, str] = {}
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            if colon:
                headers[name.strip().lower()] = value.strip()
        if headers.get("expect", "").lower() == "100-continue":
            await self.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            body = await asyncio.wait_for(self._body(headers), BODY_S_MAX)
        except (asyncio.IncompleteReadError, asyncio.TimeoutError, ConnectionError):
            return None
        closing = headers.get("connection", "").lower() == "close"
        keep_alive = parts[2] == "HTTP/1.1" and not closing
        return Request(parts[0], parts[1].partition("?")[0], body, keep_alive)

    async def _until(self, mark: bytes) -> bytes:
        while mark not in self._early:
            if len(self._early) > HEAD_BYTES_MAX:
                raise Refused(431, "a line or the head of the request is too long")
            await self._more()
        found, _, self._early = self._early.partition(mark)
        return found

    async def _exactly(self, count: int) -> bytes:
        while len(self._early) < count:
            await self._more()
        found, self._early = self._early[:count], self._early[count:]
        return found

    async def _more(self) -> None:
        piece = await self._reader.read(64 * 1024)
        if not piece:
            raise asyncio.IncompleteReadError(self._early, None)
        self._early += piece

    async def _body(self, headers: dict[str, str]) -> bytes:
        coding = headers.get("transfer-encoding", "").lower()
        if coding == "chunked":
            return await self._chunks()
        if coding:
            raise Refused(501, f"the transfer encoding {coding[:40]} is not known")
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            raise Refused(400, "the length of the body is no number")
        if int(length) > BODY_BYTES_MAX:
            raise Refused(413, f"the body is longer than {BODY_BYTES_MAX} bytes")
        return await self._exactly(int(length))

    async def _chunks(self) -> bytes:
        body = bytearray()
        while True:
            line = (await self._until(b"\r\n")).partition(b";")[0].strip()
            try:
                size = int(line, 16)
            except ValueError:
                raise Refused(400, "a chunk of the body has no length") from None
            if size < 0 or len(body) + size > BODY_BYTES_MAX:
                raise Refused(413, f"the body is longer than {BODY_BYTES_MAX} bytes")
            if size == 0:
                while await self._until(b"\r\n"):
                    pass
                return bytes(body)
            body += await self._exactly(size)
            await self._exactly(2)

    async def send(self, data: bytes) -> None:
        """Write, and wait until most of it has left."""
        try:
            self._writer.write(data)
            await asyncio.wait_for(self._writer.drain(), STALL_S_MAX)
        except (ConnectionError, asyncio.TimeoutError):
            raise ClientGone from None

    async def answer(self, status: int, body: bytes, kind: str = "application/json") -> None:
        """Write a whole answer."""
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
        if status != 204:
            head += f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        await self.send(head.encode() + b"\r\n" + (b"" if status == 204 else body))

    async def answer_json(self, value: Any, status: int = 200) -> None:
        """Write a whole answer in JSON."""
        await self.answer(status, json.dumps(value).encode())

    async def answer_text(self, status: int, text: str) -> None:
        """Write a whole answer in text."""
        await self.answer(status, text.encode(), "text/plain; charset=utf-8")

    async def gone(self) -> None:
        """Return when the client has closed the connection."""
        while len(self._early) <= HEAD_BYTES_MAX:
            try:
                piece = await self._reader.read(4096)
            except ConnectionError:
                return
            if not piece:
                return
            self._early += piece
        await asyncio.Event().wait()  # Too much came too early: it shows when something is written.

    async def stream(self) -> "Stream":
        """Begin an answer of lines of JSON."""
        await self.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\n"
            b"Cache-Control: no-store\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        return Stream(self)

    async def close(self) -> None:
        """Close the connection."""
        self._writer.close()
        try:
            await asyncio.wait_for(self._writer.wait_closed(), 5)
        except (OSError, asyncio.TimeoutError):
            pass


class Stream:
    """An answer of lines, each of which is one JSON object."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def line(self, value: dict[str, Any]) -> None:
        """Write one line."""
        data = json.dumps(value, separators=(",", ":")).encode() + b"\n"
        await self._connection.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def end(self) -> None:
        """Write the end of the answer."""
        await self._connection.send(b"0\r\n\r\n")
