"""Snapshots: kept moments that sandboxes are made from."""

import uuid

from e2b import Sandbox

from support import PATIENCE


def known(**query):
    pager = Sandbox.list_snapshots(**query)
    found = []
    while pager.has_next:
        found.extend(one.snapshot_id for one in pager.next_items())
    return found


def test_from_one_moment_to_new_sandboxes(make):
    source = make()
    source.files.write("moment.txt", "then")
    source.commands.run("echo memory > /dev/shm/moment", timeout=PATIENCE)
    snapshot = source.create_snapshot()
    assert source.is_running()
    source.files.write("moment.txt", "now")
    assert snapshot.snapshot_id in known()
    assert snapshot.snapshot_id in known(sandbox_id=source.sandbox_id)
    first = make(snapshot.snapshot_id)
    second = make(snapshot.snapshot_id)
    first.files.write("moment.txt", "changed")
    assert second.files.read("moment.txt") == "then"
    assert second.commands.run("cat /dev/shm/moment", timeout=PATIENCE).stdout == "memory\n"
    assert source.files.read("moment.txt") == "now"
    assert Sandbox.delete_snapshot(snapshot.snapshot_id)
    assert snapshot.snapshot_id not in known()
    assert not Sandbox.delete_snapshot(snapshot.snapshot_id)
    assert first.files.read("moment.txt") == "changed", "what was made from it lives on"


def test_names(make):
    name = f"moment-{uuid.uuid4().hex[:8]}"
    source = make()
    source.files.write("named.txt", name)
    snapshot = source.create_snapshot(name=name)
    assert any(name in one for one in snapshot.names)
    assert known(name=name) == [snapshot.snapshot_id]
    assert known(name=f"{name}-not") == []
    copy = make(name)
    assert copy.files.read("named.txt") == name
    assert Sandbox.delete_snapshot(name)
    assert known(name=name) == []


def test_page_by_page(make):
    source = make()
    made = {source.create_snapshot().snapshot_id for _ in range(2)}
    pager = Sandbox.list_snapshots(sandbox_id=source.sandbox_id, limit=1)
    first = pager.next_items()
    assert len(first) == 1 and pager.has_next
    second = pager.next_items()
    assert {one.snapshot_id for one in first + second} == made
    for one in made:
        assert Sandbox.delete_snapshot(one)
