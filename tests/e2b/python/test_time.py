"""How long sandboxes live: time-outs, their extension, and what happens at the end."""

import datetime

import pytest
from e2b import NotFoundException, Sandbox, SandboxState

from support import PATIENCE, until


def left(sandbox):
    """Seconds until its end, as the node says."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return (sandbox.get_info().end_at - now).total_seconds()


def state(sandbox):
    return sandbox.get_info().state


def test_time_is_set_and_extended(make):
    sandbox = make(timeout=300)
    assert 200 < left(sandbox) <= 301
    sandbox.set_timeout(1200)
    assert 1100 < left(sandbox) <= 1201
    sandbox.set_timeout(600)
    assert 500 < left(sandbox) <= 601
    Sandbox.connect(sandbox.sandbox_id, timeout=60)
    assert 500 < left(sandbox), "connecting never shortens"
    Sandbox.connect(sandbox.sandbox_id, timeout=2400)
    assert 2300 < left(sandbox) <= 2401


def test_it_ends_when_its_time_is_over(make):
    sandbox = make()
    sandbox.set_timeout(1)
    until("it has ended", lambda: not sandbox.is_running(), 60)
    with pytest.raises(NotFoundException):
        sandbox.get_info()


def test_it_is_paused_and_goes_on_when_connected_to(make):
    sandbox = make(lifecycle={"on_timeout": "pause"})
    assert sandbox.get_info().lifecycle["on_timeout"] == "pause"
    sandbox.commands.run("echo kept > /dev/shm/kept", timeout=PATIENCE)
    sandbox.set_timeout(1)
    until("it is paused", lambda: state(sandbox) == SandboxState.PAUSED)
    assert not sandbox.is_running()
    assert state(sandbox) == SandboxState.PAUSED, "asking does not wake it"
    sandbox.connect(timeout=600)
    assert state(sandbox) == SandboxState.RUNNING
    assert sandbox.commands.run("cat /dev/shm/kept", timeout=PATIENCE).stdout == "kept\n"


def test_it_is_paused_and_goes_on_by_itself(make):
    sandbox = make(lifecycle={"on_timeout": "pause", "auto_resume": True})
    assert sandbox.get_info().lifecycle == {"on_timeout": "pause", "auto_resume": True}
    sandbox.commands.run("echo kept > /dev/shm/kept", timeout=PATIENCE)
    sandbox.set_timeout(1)
    until("it is paused", lambda: state(sandbox) == SandboxState.PAUSED)
    assert sandbox.commands.run("cat /dev/shm/kept", timeout=PATIENCE).stdout == "kept\n"
    assert state(sandbox) == SandboxState.RUNNING
