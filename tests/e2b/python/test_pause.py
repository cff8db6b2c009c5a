"""Pausing and going on."""

import pytest
from e2b import NotFoundException, Sandbox, SandboxState

from support import PATIENCE


def test_memory_processes_and_files_are_kept(make):
    sandbox = make()
    sandbox.files.write("kept.txt", "kept")
    sandbox.commands.run("echo memory > /dev/shm/kept", timeout=PATIENCE)
    counter = sandbox.commands.run(
        "n=0; while true; do n=$((n+1)); echo $n > /tmp/next; mv /tmp/next /tmp/count; sleep 0.2; done",
        background=True,
        timeout=0,
    )
    sandbox.commands.run("until [ -s /tmp/count ]; do sleep 0.2; done", timeout=PATIENCE)
    assert sandbox.pause()
    assert not sandbox.pause(), "it is paused already"
    assert sandbox.get_info().state == SandboxState.PAUSED
    assert not sandbox.is_running()
    with pytest.raises(Exception):
        sandbox.commands.run("true", timeout=30)
    again = sandbox.connect(timeout=900)
    assert again.sandbox_id == sandbox.sandbox_id
    assert sandbox.get_info().state == SandboxState.RUNNING
    assert sandbox.files.read("kept.txt") == "kept"
    before = int(sandbox.commands.run("cat /tmp/count", timeout=PATIENCE).stdout)
    later = sandbox.commands.run(
        f"cat /dev/shm/kept; until [ $(cat /tmp/count) -gt {before} ]; do sleep 0.2; done; echo more",
        timeout=PATIENCE,
    )
    assert later.stdout == "memory\nmore\n"
    assert counter.pid in [one.pid for one in sandbox.commands.list()]


def test_files_alone_are_kept_on_request(make):
    sandbox = make()
    sandbox.files.write("kept.txt", "kept")
    sandbox.commands.run("echo memory > /dev/shm/lost; sync", timeout=PATIENCE)
    assert sandbox.pause(mode="filesystem")
    sandbox.connect(timeout=900)
    assert sandbox.files.read("kept.txt") == "kept"
    assert not sandbox.files.exists("/dev/shm/lost")


def test_a_paused_one_is_killed(make):
    sandbox = make()
    sandbox.pause()
    assert sandbox.kill()
    with pytest.raises(NotFoundException):
        Sandbox.connect(sandbox.sandbox_id)
