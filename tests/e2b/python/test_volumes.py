"""Volumes and secrets: kept outside of sandboxes."""

import uuid

import e2b
import pytest
from e2b import Volume

from support import PATIENCE


@pytest.fixture
def name():
    return f"kept-{uuid.uuid4().hex[:8]}"


def test_a_volume_is_written_from_both_sides(make, name):
    volume = Volume.create(name)
    try:
        assert name in [one.name for one in Volume.list()]
        volume.write_file("/from-outside.txt", "outside")
        sandbox = make(volume_mounts={"/mnt/kept": volume})
        seen = sandbox.commands.run(
            "cat /mnt/kept/from-outside.txt; echo -n inside > /mnt/kept/from-inside.txt; sync", timeout=PATIENCE
        )
        assert seen.stdout == "outside"
        sandbox.kill()
        assert volume.read_file("/from-inside.txt") == "inside"
    finally:
        assert Volume.destroy(volume.volume_id)
    assert name not in [one.name for one in Volume.list()]


def test_a_secret_is_known_by_its_name_alone(name):
    secrets = e2b.Secret
    made = secrets.create(name, "hidden value")
    try:
        assert made.name == name
        assert secrets.exists(name)
        assert "hidden value" not in repr(secrets.get_info(name))
    finally:
        assert secrets.destroy(name)
    assert not secrets.exists(name)
