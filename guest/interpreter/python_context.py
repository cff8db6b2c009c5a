"""A context for Python: one IPython shell in this process.

Started by the server as `python3 python_context.py REQUESTS EVENTS STDOUT STDERR`, four descriptors; the
last two are the read ends of this process's own output. Runs with the user's site packages, so that
what the image installs for all interpreters (new seeds after a fork, by signal 48) holds here too;
the handler of that signal is never touched.

Code runs in the main thread, one piece at a time. Another thread reads requests and answers questions
about variables meanwhile.
"""

from __future__ import annotations

import builtins
import json
import os
import queue
import signal
import sys
import threading
import warnings
from typing import Any

_DIRECTORY = sys.path.pop(0)  # This directory is not the user's: their modules may have the same names.
os.environ.setdefault("MPLBACKEND", "agg")


class StdinNotImplementedError(RuntimeError):
    """`input()` was called: nobody is there to type."""


class Interrupts:
    """SIGINT: raises KeyboardInterrupt in running code, waits while an event is written, and else is nothing."""

    def __init__(self, output: Any) -> None:
        self._output = output
        self.running = False
        self._noted = False

    def handle(self, _number: int, _frame: object) -> None:
        """The handler."""
        if not self.running:
            return
        if self._output.interruptible:
            raise KeyboardInterrupt
        if not self._noted:
            self._noted = True
            threading.Thread(target=self._again, daemon=True).start()

    def _again(self) -> None:
        """Once the event is written, the signal comes again."""
        self._output.flush()
        self._noted = False
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


class Context:
    """The shell and what it is asked to do."""

    def __init__(self, output: Any) -> None:
        import python_display
        from IPython.core.interactiveshell import InteractiveShell
        from traitlets.config import Config

        python_display.output = output
        self._display = python_display
        self._output = output
        self._interrupts = Interrupts(output)
        self._executions: queue.Queue[dict[str, Any]] = queue.Queue()

        class Shell(InteractiveShell):
            """IPython's shell, with results and errors as events."""

            display_pub_class = python_display.Publisher
            displayhook_class = python_display.Hook

            def ask_exit(self) -> None:
                """`exit()` ends the code, not the context."""
                raise SystemExit

            def _showtraceback(self, etype: Any, evalue: Any, stb: Any) -> None:
                context._error_said = True
                text = stb if isinstance(stb, str) else "\n".join(stb)
                output.event("error", name=etype.__name__, value=_message(evalue), traceback=text)

        context = self
        config = Config()
        config.HistoryManager.enabled = False
        config.HistoryManager.hist_file = ":memory:"
        self._error_said = False
        self._shell = Shell.instance(config=config)
        python_display.install(self._shell)
        builtins.input = _no_input
        warnings.filterwarnings("ignore", message="To exit: use 'exit'")
        self._hidden = frozenset(self._shell.user_ns_hidden) | frozenset(self._shell.user_ns)

    def listen(self, requests: int) -> None:
        """Read requests until the server is gone; runs in a thread of its own."""
        with os.fdopen(requests, "rb") as lines:
            for line in lines:
                message = json.loads(line)
                if message["op"] == "execute":
                    self._executions.put(message)
                elif message["op"] == "variables":
                    self._answer_variables(message["id"])
        os._exit(0)

    def _answer_variables(self, id: int) -> None:
        import python_variables

        try:
            found = python_variables.listing(self._shell.user_ns, self._hidden)
        except Exception as error:
            found = {"variables": [], "truncated": True, "reason": type(error).__name__}
        self._output.event("answer", id=id, **found)

    def run(self) -> None:
        """Run code as it comes; never returns."""
        while True:
            message = self._executions.get()
            before = {name: os.environ.get(name) for name in message["env"]}
            os.environ.update(message["env"])
            try:
                self._execute(message["code"])
            finally:
                for name, value in before.items():
                    if value is None:
                        os.environ.pop(name, None)
                    else:
                        os.environ[name] = value
                self._output.event("done")

    def _execute(self, code: str) -> None:
        self._output.event("number_of_executions", execution_count=self._shell.execution_count)
        self._error_said = False
        signal.signal(signal.SIGINT, self._interrupts.handle)
        try:
            self._interrupts.running = True
            result = self._shell.run_cell(code, store_history=True)
            self._display.show_figures()
            self._interrupts.running = False
            error = result.error_before_exec or result.error_in_exec
            if error is not None and not self._error_said:  # IPython has only printed it.
                self._say_error(error)
        except BaseException as error:  # An interrupt between IPython's own guards, or a broken formatter.
            self._interrupts.running = False
            self._say_error(error)
        finally:
            self._interrupts.running = False
            for stream in (sys.stdout, sys.stderr):
                try:
                    stream.flush()
                except Exception:
                    pass

    def _say_error(self, error: BaseException) -> None:
        name = type(error).__name__
        self._output.event("error", name=name, value=_message(error), traceback=f"{name}: {_message(error)}")


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "<the error has no text>"


def _no_input(*_: Any, **__: Any) -> str:
    raise StdinNotImplementedError("input() is not available: nobody is there to type")


def main() -> None:
    """Start the shell and serve."""
    requests, events, stdout, stderr = (int(number) for number in sys.argv[1:5])
    for fd in (requests, events, stdout, stderr):
        os.set_inheritable(fd, False)
    sys.argv = [""]
    sys.path.insert(0, _DIRECTORY)
    from python_output import Output, TextStream

    output = Output(events, {"stdout": stdout, "stderr": stderr})
    try:
        context = Context(output)
    except ImportError as error:
        output.event("failed", reason=f"Python contexts need IPython, which this image does not have: {error}")
        return
    import python_variables  # noqa: F401  Here, while its directory can be found.

    sys.path.remove(_DIRECTORY)
    sys.stdout = TextStream(output, "stdout", 1)
    sys.stderr = TextStream(output, "stderr", 2)
    threading.Thread(target=context.listen, args=(requests,), name="ramet-requests", daemon=True).start()
    output.event("ready")
    context.run()


if __name__ == "__main__":
    main()
