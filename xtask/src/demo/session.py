"""A Python session that keeps its variables, and the way to ask it: `session.py serve`, `session.py 'code'`.

The session is one process inside the sandbox. A fork of the sandbox has it too, with all it holds.
"""

import contextlib
import io
import socket
import sys
import traceback

PATH = "/run/demo.sock"


def serve():
    import numpy

    variables = {"numpy": numpy}
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(PATH)
    listener.listen()
    while True:
        connection, _ = listener.accept()
        # A connection is cut when the sandbox is forked under it; the next one is not.
        with connection, contextlib.suppress(OSError):
            code = b"".join(iter(lambda: connection.recv(65536), b""))
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                try:
                    exec(compile(code, "<session>", "exec"), variables)
                except BaseException:
                    print(traceback.format_exc())
            connection.sendall(output.getvalue().encode())


def ask(code):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(120)
        connection.connect(PATH)
        connection.sendall(code.encode())
        connection.shutdown(socket.SHUT_WR)
        while piece := connection.recv(65536):
            sys.stdout.write(piece.decode())


serve() if sys.argv[1] == "serve" else ask(sys.argv[1])
