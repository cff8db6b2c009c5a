"""Volumes and secrets: kept outside of sandboxes."""

import uuid

import e2b
import pytest
from e2b import Volume, VolumeException

from support import PATIENCE


@pytest.fixture
def name():
    return f"kept-{uuid.uuid4().hex[:8]}"


def test_a_volume_outlives_its_sandboxes(make, name):
    volume = Volume.create(name)
    try:
        assert name in [one.name for one in Volume.list()]
        sandbox = make(volume_mounts={"/mnt/kept": volume})
        sandbox.commands.run("echo -n kept > /mnt/kept/file; sync", user="root", timeout=PATIENCE)
        sandbox.kill()
        again = make(volume_mounts={"/mnt/kept": volume})
        assert again.commands.run("cat /mnt/kept/file", timeout=PATIENCE).stdout == "kept"
        again.kill()
        with pytest.raises(VolumeException, match="content of volumes"):
            volume.write_file("/from-outside.txt", "outside")
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
