"""Lists of sandboxes: metadata, states, pages."""

import uuid

import pytest
from e2b import Sandbox, SandboxQuery, SandboxState

from conftest import Maker

MARK = uuid.uuid4().hex


@pytest.fixture(scope="module")
def three():
    """One paused, two running, oldest first."""
    maker = Maker(Sandbox)
    made = [maker(metadata={"mark": MARK, "n": str(n), "odd key": "a=b&c% ü"}) for n in range(3)]
    made[0].pause()
    yield made
    maker.clear()


def pages(limit=None, order=None, **query):
    options = {"order": order} if order else {}
    pager = Sandbox.list(query=SandboxQuery(**query), limit=limit, **options)
    found = []
    while pager.has_next:
        found.append([one.sandbox_id for one in pager.next_items()])
        assert len(found) < 20, "pages without end"
    return found


def ids(**options):
    return [one for page in pages(**options) for one in page]


def test_by_metadata(three):
    everyone = {one.sandbox_id for one in three}
    assert set(ids(metadata={"mark": MARK})) == everyone
    assert ids(metadata={"mark": MARK, "n": "1"}) == [three[1].sandbox_id]
    assert set(ids(metadata={"mark": MARK, "odd key": "a=b&c% ü"})) == everyone
    assert ids(metadata={"mark": MARK, "odd key": "a=b"}) == []


def test_by_state(three):
    mark = {"mark": MARK}
    assert ids(metadata=mark, state=[SandboxState.PAUSED]) == [three[0].sandbox_id]
    running = ids(metadata=mark, state=[SandboxState.RUNNING])
    assert set(running) == {three[1].sandbox_id, three[2].sandbox_id}
    both = ids(metadata=mark, state=[SandboxState.RUNNING, SandboxState.PAUSED])
    assert set(both) == {one.sandbox_id for one in three}


def test_page_by_page(three):
    found = pages(limit=1, metadata={"mark": MARK})
    assert [len(page) for page in found if page] == [1, 1, 1]
    assert {page[0] for page in found if page} == {one.sandbox_id for one in three}


def test_in_order(three):
    made = [one.sandbox_id for one in three]
    assert ids(metadata={"mark": MARK}, order="asc") == made
    assert ids(metadata={"mark": MARK}, order="desc") == made[::-1]


def test_what_a_list_says(three):
    pager = Sandbox.list(query=SandboxQuery(metadata={"mark": MARK, "n": "2"}))
    (one,) = pager.next_items()
    assert one.metadata["odd key"] == "a=b&c% ü"
    assert one.state == SandboxState.RUNNING
    assert one.end_at > one.started_at
    assert one.cpu_count >= 1 and one.memory_mb >= 128
