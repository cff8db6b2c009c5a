"""A server for tests, and what a client of it does.

The interpreter of Python contexts is the one that runs the tests, or RAMET_TEST_PYTHON.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import unittest
from pathlib import Path
from typing import Any, Iterator, Optional

SERVER = Path(__file__).resolve().parent.parent / "server.py"
PYTHON = os.environ.get("RAMET_TEST_PYTHON") or sys.executable
DEADLINE_S = 60 * float(os.environ.get("RAMET_TEST_PATIENCE", "1"))


def has_module(name: str) -> bool:
    """Whether contexts can import a module."""
    return subprocess.run([PYTHON, "-c", f"import {name}"], capture_output=True).returncode == 0


class Running:
    """An execution whose events are read as they come."""

    def __init__(self, port: int, body: dict[str, Any]) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), DEADLINE_S)
        data = json.dumps(body).encode()
        head = f"POST /execute HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
        self.socket.sendall(head.encode() + data)
        self._until = time.monotonic() + DEADLINE_S
        self._lines = self.socket.makefile("rb")
        while self._lines.readline().strip():
            pass

    def events(self) -> Iterator[dict[str, Any]]:
        """Events, each as soon as it is there; the last within the deadline, however much is heard before."""
        while size := int(self._lines.readline() or b"0", 16):
            if time.monotonic() > self._until:
                raise TimeoutError(f"the execution has not ended in {DEADLINE_S} s")
            yield json.loads(self._lines.read(size + 2))

    def wait_for(self, kind: str) -> dict[str, Any]:
        """The next event of a type."""
        return next(event for event in self.events() if event["type"] == kind)

    def leave(self) -> None:
        """Close the connection in the middle."""
        self._lines.close()
        self.socket.close()


class Done:
    """What an execution has reported."""

    def __init__(self, events: list[dict[str, Any]]) -> None:
        self.events = events
        self.kinds = [event["type"] for event in events]
        self.results = [event for event in events if event["type"] == "result"]
        self.stdout = self._text("stdout")
        self.stderr = self._text("stderr")
        errors = [event for event in events if event["type"] == "error"]
        self.error: Optional[dict[str, Any]] = errors[0] if errors else None

    def _text(self, kind: str) -> str:
        return "".join(event["text"] for event in self.events if event["type"] == kind)

    @property
    def text(self) -> Optional[str]:
        """The text of the main result."""
        return next((result.get("text") for result in self.results if result["is_main_result"]), None)


class ServerTest(unittest.TestCase):
    """Tests with one server for each class."""

    STARTER: list[str] = []
    """What starts the server."""

    process: subprocess.Popen[bytes]
    port: int

    @classmethod
    def setUpClass(cls) -> None:
        command = [*cls.STARTER, sys.executable, "-I", str(SERVER), "--port", "0", "--python", PYTHON]
        cls.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert cls.process.stdout is not None
        cls.port = int(cls.process.stdout.readline().split()[-1])

    @classmethod
    def tearDownClass(cls) -> None:
        cls.process.send_signal(signal.SIGINT)
        try:
            cls.process.wait(10)
        finally:
            cls.process.kill()
            cls.process.wait()
            assert cls.process.stdout is not None
            cls.process.stdout.close()

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """One request; its answer is JSON if it says so."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            data = answer.read()
            is_json = answer.headers.get("Content-Type") == "application/json"
            return answer.status, json.loads(data) if is_json else data.decode()
        finally:
            connection.close()

    def begin(self, code: str, **fields: Any) -> Running:
        """Start an execution."""
        running = Running(self.port, {"code": code, **fields})
        self.addCleanup(running.leave)
        return running

    def run_code(self, code: str, **fields: Any) -> Done:
        """Run code to its end."""
        running = self.begin(code, **fields)
        events = list(running.events())
        running.leave()
        self.assertEqual(events[-1]["type"], "end_of_execution")
        return Done(events)

    def context(self, language: str = "python", **fields: Any) -> str:
        """A new context."""
        status, made = self.call("POST", "/contexts", {"language": language, **fields})
        self.assertEqual(status, 200, made)
        self.addCleanup(self.call, "DELETE", f"/contexts/{made['id']}")
        return made["id"]
