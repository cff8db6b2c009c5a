"""What every version of the SDK does: create, commands, files, list, pause and connect, fork, kill."""

import pytest
from e2b import CommandExitException, Sandbox, SandboxQuery, SandboxState

from support import PATIENCE, RUN, needs_domain, domain_mode, since, version

pytestmark = pytest.mark.smoke


def listed(**query):
    pages = Sandbox.list(query=SandboxQuery(**query))
    found = []
    while pages.has_next:
        found.extend(pages.next_items())
    return found


def test_commands_answer(box):
    done = box.commands.run("echo out; echo err >&2", timeout=PATIENCE)
    assert (done.stdout, done.stderr, done.exit_code) == ("out\n", "err\n", 0)
    with pytest.raises(CommandExitException) as failed:
        box.commands.run("exit 7", timeout=PATIENCE)
    assert failed.value.exit_code == 7


def test_commands_run_in_the_background(box):
    handle = box.commands.run("sleep 0.5; echo later", background=True, timeout=PATIENCE)
    assert handle.pid > 0
    assert handle.wait().stdout == "later\n"


def test_files_come_back_as_they_went(box):
    data = bytes(range(256)) * 64
    box.files.write("smoke/data.bin", data)
    assert bytes(box.files.read("smoke/data.bin", format="bytes")) == data
    box.files.write("smoke/text.txt", "grüße\n")
    assert box.files.read("smoke/text.txt") == "grüße\n"
    names = sorted(entry.name for entry in box.files.list("smoke"))
    assert names == ["data.bin", "text.txt"]
    assert box.files.exists("smoke/text.txt")
    box.files.remove("smoke")
    assert not box.files.exists("smoke/text.txt")


def test_it_is_listed_by_its_metadata(box):
    found = {one.sandbox_id: one for one in listed(metadata={"run": RUN})}
    assert found[box.sandbox_id].state == SandboxState.RUNNING
    assert found[box.sandbox_id].metadata["run"] == RUN
    assert listed(metadata={"run": "of somebody else"}) == []


def test_pause_keeps_memory_and_files(make):
    sandbox = make()
    sandbox.files.write("kept.txt", "kept")
    sandbox.commands.run("echo memory > /dev/shm/kept", timeout=PATIENCE)
    sleeper = sandbox.commands.run("sleep 3600", background=True, timeout=0)
    sandbox.pause()
    paused = listed(metadata={"run": RUN}, state=[SandboxState.PAUSED])
    assert sandbox.sandbox_id in [one.sandbox_id for one in paused]
    resumed = Sandbox.connect(sandbox.sandbox_id, timeout=600)
    assert resumed.sandbox_id == sandbox.sandbox_id
    assert resumed.files.read("kept.txt") == "kept"
    seen = resumed.commands.run(f"cat /dev/shm/kept; kill -0 {sleeper.pid}", timeout=PATIENCE)
    assert seen.stdout == "memory\n"


@since("2.34.0", "fork")
def test_fork_copies_and_separates(make):
    sandbox = make()
    sandbox.files.write("state.txt", "before")
    children = sandbox.fork(count=2, timeout=600)
    assert len(children) == 2
    for child in children:
        assert isinstance(child, Sandbox), child
        make.keep(child)
    assert len({sandbox.sandbox_id, *(child.sandbox_id for child in children)}) == 3
    children[0].files.write("state.txt", "after")
    assert children[1].files.read("state.txt") == "before"
    assert sandbox.files.read("state.txt") == "before"


def test_kill_ends_it(make):
    sandbox = make()
    assert sandbox.is_running()
    assert sandbox.kill()
    assert not sandbox.is_running()
    assert not sandbox.kill()


@needs_domain
@pytest.mark.domain
@pytest.mark.skipif(version("e2b-code-interpreter") is None, reason="no e2b-code-interpreter here")
def test_code_runs_in_domain_mode(make_code):
    """Releases before 2.11 know no other way."""
    with domain_mode():
        sandbox = make_code()
        sandbox.run_code("x = 6")
        assert sandbox.run_code("x * 7").text == "42"
