"""Two keys of two principals: neither sees nor touches what is the other's."""

import os
import urllib.request

import pytest
from e2b import NotFoundException, Sandbox, SandboxQuery

from support import OTHER_KEY, RUN, TIMEOUT, answer_of, needs_other_key

pytestmark = needs_other_key


def ids(**options):
    pager = Sandbox.list(query=SandboxQuery(metadata={"run": RUN}), **options)
    found = []
    while pager.has_next:
        found.extend(one.sandbox_id for one in pager.next_items())
    return found


def test_neither_sees_the_other(box):
    theirs = Sandbox.create(timeout=TIMEOUT, metadata={"run": RUN}, api_key=OTHER_KEY)
    try:
        assert box.sandbox_id in ids() and theirs.sandbox_id not in ids()
        assert ids(api_key=OTHER_KEY) == [theirs.sandbox_id]
        with pytest.raises(NotFoundException):
            Sandbox.get_info(theirs.sandbox_id)
    finally:
        theirs.kill()


def test_neither_touches_the_other(box):
    key = {"api_key": OTHER_KEY}
    for touch in (
        lambda: Sandbox.get_info(box.sandbox_id, **key),
        lambda: Sandbox.connect(box.sandbox_id, **key),
        lambda: Sandbox.set_timeout(box.sandbox_id, 1, **key),
        lambda: Sandbox.fork(box.sandbox_id, **key),
        lambda: Sandbox.pause(box.sandbox_id, **key),
        lambda: Sandbox.create_snapshot(box.sandbox_id, **key),
    ):
        with pytest.raises(NotFoundException):
            touch()
    assert not Sandbox.kill(box.sandbox_id, **key)
    assert box.is_running()


def test_a_snapshot_is_its_makers(box):
    snapshot = box.create_snapshot()
    pager = Sandbox.list_snapshots(api_key=OTHER_KEY)
    assert snapshot.snapshot_id not in [one.snapshot_id for one in pager.next_items()]
    with pytest.raises(Exception, match="(?i)not found|no such|unknown|403|404"):
        Sandbox.create(snapshot.snapshot_id, timeout=60, api_key=OTHER_KEY)
    assert not Sandbox.delete_snapshot(snapshot.snapshot_id, api_key=OTHER_KEY)
    assert Sandbox.delete_snapshot(snapshot.snapshot_id)


def test_the_inside_needs_the_sandboxs_own_token(box, make):
    """Neither no token, nor an API key, nor another sandbox's token opens it."""
    box.files.write("private.txt", "private")
    other = make()
    shown = other.connection_config.sandbox_headers.get("X-Access-Token")
    assert shown, "sandboxes have tokens"

    def ask(token):
        headers = {"E2b-Sandbox-Id": box.sandbox_id, "E2b-Sandbox-Port": "49983"}
        if token:
            headers["X-Access-Token"] = token
        url = os.environ["E2B_API_URL"].rstrip("/") + "/files?path=private.txt"
        return answer_of(urllib.request.Request(url, headers=headers))

    own = box.connection_config.sandbox_headers["X-Access-Token"]
    assert ask(own) == (200, "private")
    for token in (None, "", shown, os.environ["E2B_API_KEY"], own[:-1]):
        status, text = ask(token)
        assert status == 401, token
        assert "private\n" not in text and text != "private"
