"""Terminals."""

import pytest
from e2b import CommandExitException, NotFoundException, PtySize

from support import PATIENCE


class Screen:
    """What a terminal shows, and what is done when it first shows something."""

    def __init__(self, *rules):
        self.text = ""
        self.rules = list(rules)

    def __call__(self, data):
        self.text += bytes(data).decode(errors="replace")
        if self.rules and self.rules[0][0] in self.text:
            self.rules.pop(0)[1]()


def test_a_terminal_talks_and_is_resized(box):
    terminal = box.pty.create(
        PtySize(rows=24, cols=80), cwd="/tmp", envs={"MARK": "m4rk"}, timeout=PATIENCE
    )

    def resize():
        box.pty.resize(terminal.pid, PtySize(rows=40, cols=123))
        box.pty.send_stdin(terminal.pid, b"stty size\n")

    screen = Screen(
        ("24 80", resize),
        ("40 123", lambda: box.pty.send_stdin(terminal.pid, b"echo $MARK-$TERM; pwd; exit 0\n")),
    )
    box.pty.send_stdin(terminal.pid, b"stty size\n")
    assert terminal.wait(on_pty=screen).exit_code == 0
    assert not screen.rules, screen.text
    assert "m4rk-xterm" in screen.text
    assert "\r\n/tmp\r\n" in screen.text


def test_its_exit_code_counts(box):
    terminal = box.pty.create(PtySize(rows=24, cols=80), timeout=PATIENCE)
    box.pty.send_stdin(terminal.pid, b"exit 5\n")
    with pytest.raises(CommandExitException) as ended:
        terminal.wait()
    assert ended.value.exit_code == 5


def test_somebody_else_takes_it_over(box):
    terminal = box.pty.create(PtySize(rows=24, cols=80), timeout=PATIENCE)
    terminal.disconnect()
    other = box.pty.connect(terminal.pid, timeout=PATIENCE)
    box.pty.send_stdin(other.pid, b"echo $((6*7))-over; exit 0\n")
    screen = Screen()
    assert other.wait(on_pty=screen).exit_code == 0
    assert "42-over" in screen.text


def test_it_is_killed(box):
    terminal = box.pty.create(PtySize(rows=24, cols=80), timeout=PATIENCE)
    assert box.pty.kill(terminal.pid)
    with pytest.raises(CommandExitException):
        terminal.wait()
    assert not box.pty.kill(terminal.pid)
    with pytest.raises(NotFoundException):
        box.pty.resize(999_999, PtySize(rows=1, cols=1))
