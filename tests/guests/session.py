"""A Python session inside a guest that keeps its variables.

Each connection to its socket brings code, closes its side, and gets what the code printed (after a
"+") or why it failed (after a "!"). All code shares one namespace, in one interpreter that was
running before any fork of the machine: what it holds is what children inherit.
"""

import contextlib
import ctypes
import io
import json
import mmap
import os
import random
import select
import signal
import socket
import sqlite3
import struct
import sys
import time
import traceback
import uuid

import numpy

PATH = "/run/session.sock"


def spawn(function, *arguments):
    """Runs a function in a process of its own."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        function(*arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def memory(size=4096):
    """Memory that this process shares with those it spawns."""
    return mmap.mmap(-1, size)


def physical(area):
    """The address in the machine of the first page of some memory."""
    at = ctypes.addressof(ctypes.c_char.from_buffer(area))
    with open("/proc/self/pagemap", "rb") as table:
        table.seek(at // 4096 * 8)
        return (int.from_bytes(table.read(8), "little") & (1 << 55) - 1) * 4096 + at % 4096


def name():
    """The host name."""
    return os.uname().nodename


def put(path, text):
    """Writes a file, and has it reach the disk."""
    with open(path, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def get(path):
    """What the disk holds of a file, whatever is cached."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return file.read()


def until(condition, seconds=60):
    """Waits for something."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("it did not happen")
        time.sleep(0.01)


def answer(code, variables):
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output):
            exec(compile(code, "<session>", "exec"), variables)
        return "+" + output.getvalue()
    except BaseException:
        return "!" + traceback.format_exc()


def serve():
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(PATH)
    listener.listen(64)
    variables = dict(globals())
    os.write(1, b"listening\n")
    while True:
        connection, _ = listener.accept()
        # A connection is cut when the machine is forked under it; the next one is not.
        with connection, contextlib.suppress(OSError):
            code = b"".join(iter(lambda: connection.recv(65536), b""))
            connection.sendall(answer(code, variables).encode())
            # Spawned processes hold it, too.
            connection.shutdown(socket.SHUT_RDWR)


serve()
