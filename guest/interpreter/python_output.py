"""What a Python context says: events, in the order in which they happened.

All output goes one way. `print` writes to a `TextStream`, whose text becomes events; what children and
C libraries write to descriptors 1 and 2 lands in pipes that are emptied before anything else is said,
and by a thread in between. So the order is exact for everything that this process does one after the
other. Text is gathered for a few milliseconds if it comes fast.

An interrupt never leaves half an event behind: while an event is written, `interruptible` is false, and
the context's handler notes the signal instead of raising.
"""

from __future__ import annotations

import codecs
import io
import json
import os
import select
import threading
import time
from typing import Any, Callable

PIECE_CHARS_MAX = 32 * 1024
PIPE_READ_BYTES = 32 * 1024
GATHER_S = 0.02
EVENT_BYTES_MAX = 48 * 1024 * 1024


class Output:
    """The one writer of a context's events."""

    def __init__(self, events: int, pipes: dict[str, int]) -> None:
        self._events = events
        self._pipes = pipes
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in pipes}
        self._lock = threading.RLock()
        self._writing = False
        self._later: list[Callable[[], None]] = []
        self._gathered: list[str] = []
        self._gathered_chars = 0
        self._gathered_for = "stdout"
        self._gathered_at = 0.0
        self._written_at = 0.0
        self._pid = os.getpid()
        self._main = threading.get_ident()
        for fd in pipes.values():
            os.set_blocking(fd, False)
        threading.Thread(target=self._pump, name="ramet-output", daemon=True).start()

    @property
    def interruptible(self) -> bool:
        """Whether the main thread may be interrupted now."""
        return not self._writing

    def event(self, kind: str, **fields: Any) -> None:
        """Say something other than output."""
        line = json.dumps({"type": kind, **fields}, default=repr).encode() + b"\n"
        if len(line) > EVENT_BYTES_MAX:
            self.text("stderr", f"A {kind} of {len(line)} bytes is too large and was left out.\n")
            return
        self._do(lambda: self._say(line))

    def text(self, name: str, text: str) -> None:
        """Say text on stdout or stderr."""
        if os.getpid() != self._pid:
            os.write({"stdout": 1, "stderr": 2}[name], text.encode("utf-8", "replace"))
            return
        self._do(lambda: self._gather(name, text))

    def flush(self) -> None:
        """Say what was gathered and what waits in the pipes."""
        if os.getpid() == self._pid:
            self._do(self._settle)

    def _do(self, act: Callable[[], None]) -> None:
        """Run `act` alone; if this thread is in the middle of one (a handler or a finalizer), right after it."""
        with self._lock:
            if self._writing:
                self._later.append(act)
                return
            self._writing = True
            try:
                act()
                while self._later:
                    self._later.pop(0)()
            finally:
                self._writing = False

    def _gather(self, name: str, text: str) -> None:
        self._drain()
        if name != self._gathered_for:
            self._write_gathered()
            self._gathered_for = name
        now = time.monotonic()
        if not self._gathered:
            self._gathered_at = now
        self._gathered.append(text)
        self._gathered_chars += len(text)
        long_ago = now - self._written_at > GATHER_S
        if self._gathered_chars > PIECE_CHARS_MAX or (long_ago and text.endswith("\n")):
            self._write_gathered()

    def _say(self, line: bytes) -> None:
        self._settle()
        self._write(line)

    def _settle(self) -> None:
        self._drain()
        self._write_gathered()

    def _catch_up(self) -> None:
        self._drain()
        if time.monotonic() - self._gathered_at > GATHER_S:
            self._write_gathered()

    def _write_gathered(self) -> None:
        if self._gathered:
            text, self._gathered, self._gathered_chars = "".join(self._gathered), [], 0
            self._written_at = time.monotonic()
            self._write_text(self._gathered_for, text)

    def _drain(self) -> None:
        """Say what waits in the pipes: it was written before whatever is said next."""
        for name, fd in self._pipes.items():
            for _ in range(64):  # A child that never stops writing must not keep this process here.
                try:
                    data = os.read(fd, PIPE_READ_BYTES)
                except BlockingIOError:
                    break
                if not data:
                    break
                self._write_gathered()
                self._write_text(name, self._decoders[name].decode(data))

    def _write_text(self, name: str, text: str) -> None:
        for start in range(0, len(text), PIECE_CHARS_MAX):
            piece = text[start : start + PIECE_CHARS_MAX]
            event = {"type": name, "text": piece, "timestamp": time.time_ns()}
            self._write(json.dumps(event).encode() + b"\n")

    def _write(self, line: bytes) -> None:
        view = memoryview(line)
        while view:
            view = view[os.write(self._events, view) :]

    def _pump(self) -> None:
        fds = list(self._pipes.values())
        while True:
            try:
                select.select(fds, [], [], GATHER_S if self._gathered else GATHER_S * 5)
                self._do(self._catch_up)
            except (OSError, ValueError):
                return  # The server is gone.


class TextStream(io.TextIOBase):
    """`sys.stdout` or `sys.stderr` of a context."""

    encoding = "utf-8"
    errors = "replace"

    def __init__(self, output: Output, name: str, fd: int) -> None:
        super().__init__()
        self._output = output
        self._name = name
        self._fd = fd
        self.buffer = io.BufferedWriter(_Bytes(self))

    @property
    def name(self) -> str:
        """As the interpreter's own streams are called."""
        return f"<{self._name}>"

    def write(self, text: str) -> int:
        """Say text."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if text:
            self._output.text(self._name, text)
        return len(text)

    def flush(self) -> None:
        """Say it now."""
        if not self.buffer.closed:
            self.buffer.flush()
        self._output.flush()

    def fileno(self) -> int:
        """The descriptor that children inherit."""
        return self._fd

    def isatty(self) -> bool:
        """Never."""
        return False

    def writable(self) -> bool:
        """Always."""
        return True

    def close(self) -> None:
        """Not closed: the context goes on."""


class _Bytes(io.RawIOBase):
    """What `sys.stdout.buffer` writes to."""

    def __init__(self, stream: TextStream) -> None:
        super().__init__()
        self._stream = stream

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._stream.write(bytes(data).decode("utf-8", "replace"))
        return len(data)
