"""Files and directories: content, names, attributes."""

import hashlib
import io
import os
import random

import pytest
from e2b import FileNotFoundException, FileType, InvalidArgumentException, WriteInfo

from support import PATIENCE

LARGE_MIB = int(os.environ.get("E2B_TEST_LARGE_MIB", "100"))


def sh(box, line):
    return box.commands.run(line, timeout=600).stdout


@pytest.mark.parametrize(
    "data",
    [b"", b"\0", b"no newline", bytes(range(256)) * 1024],
    ids=["empty", "nul", "text", "binary"],
)
def test_content_comes_back(box, data):
    info = box.files.write("content", data)
    assert isinstance(info, WriteInfo)
    assert info.path == "/home/user/content"
    assert bytes(box.files.read("content", format="bytes")) == data
    assert sh(box, "sha256sum < content").split()[0] == hashlib.sha256(data).hexdigest()


def test_an_empty_file_is_an_empty_text(box):
    box.files.write("empty", "")
    assert box.files.read("empty") == ""
    assert box.files.get_info("empty").size == 0


@pytest.mark.parametrize(
    "name", ["grüße ☃.txt", "with space & sign?#%.txt", "日本/深い/📄", "-dash", "quo\"te'"]
)
def test_names_are_any(box, name):
    box.files.write(f"names/{name}", name)
    assert box.files.read(f"names/{name}") == name
    assert box.files.exists(f"names/{name}")
    entry = box.files.get_info(f"names/{name}")
    assert entry.path == f"/home/user/names/{name}"
    assert entry.name == name.rsplit("/", 1)[-1]
    assert f"./{name}\n" in sh(box, "cd names && find . -type f")


def test_a_write_replaces_all(box):
    box.files.write("replaced", "a long first content")
    box.files.write("replaced", "short")
    assert sh(box, "cat replaced") == "short"


def test_several_at_once(box):
    written = box.files.write_files(
        [{"path": f"several/{n}", "data": f"number {n}"} for n in range(5)]
    )
    assert [one.path for one in written] == [f"/home/user/several/{n}" for n in range(5)]
    assert sh(box, "cat several/*") == "".join(f"number {n}" for n in range(5))


@pytest.mark.parametrize("options", [{"gzip": True}, {"use_octet_stream": False}], ids=["gzip", "form"])
def test_every_way_of_writing(box, options):
    data = b"way\n" * 50_000
    box.files.write("way", data, **options)
    assert sh(box, "sha256sum < way").split()[0] == hashlib.sha256(data).hexdigest()
    assert bytes(box.files.read("way", format="bytes", gzip=True)) == data


def test_a_large_file_both_ways(box):
    """Streamed, and compared in the guest."""
    block = random.Random(7).randbytes(1 << 20)
    whole = hashlib.sha256()
    for _ in range(LARGE_MIB):
        whole.update(block)
    box.files.write("large", (block for _ in range(LARGE_MIB)), request_timeout=900)
    assert sh(box, "stat -c %s large").strip() == str(LARGE_MIB << 20)
    assert sh(box, "sha256sum < large").split()[0] == whole.hexdigest()
    back, size = hashlib.sha256(), 0
    for piece in box.files.read("large", format="stream", request_timeout=900):
        back.update(piece)
        size += len(piece)
    assert (size, back.hexdigest()) == (LARGE_MIB << 20, whole.hexdigest())
    box.files.remove("large")


def test_a_file_object_is_read(box):
    box.files.write("object", io.BytesIO(b"from an object"))
    assert box.files.read("object") == "from an object"


def test_owners_are_the_users(box):
    box.files.write("/home/user/mine", "")
    box.files.write("/root/theirs", "", user="root")
    assert sh(box, "stat -c %U:%G mine") == "user:user\n"
    assert box.files.get_info("/root/theirs", user="root").owner == "root"


def test_what_is_not_there(box):
    assert not box.files.exists("nowhere")
    for ask in (box.files.read, box.files.get_info, box.files.list):
        with pytest.raises(FileNotFoundException):
            ask("nowhere")
    with pytest.raises(FileNotFoundException):
        box.files.rename("nowhere", "elsewhere")


def test_a_directory_is_no_file(box):
    box.files.make_dir("directory")
    with pytest.raises(InvalidArgumentException):
        box.files.read("directory")
    box.files.write("plain", "")
    with pytest.raises(InvalidArgumentException):
        box.files.list("plain")


def test_directories_are_made_once(box):
    assert box.files.make_dir("made/deep/deeper")
    assert not box.files.make_dir("made/deep/deeper")
    assert sh(box, "stat -c '%F %U' made/deep/deeper") == "directory user\n"


def test_listing(box):
    box.files.write("tree/a", "1")
    box.files.write("tree/sub/b", "22")
    box.files.write("tree/sub/deep/c", "333")
    sh(box, "ln -s a tree/link")

    def paths(**options):
        return {entry.path for entry in box.files.list("tree", **options)}

    base = "/home/user/tree"
    first = {f"{base}/a", f"{base}/sub", f"{base}/link"}
    assert paths() == first
    assert paths(depth=2) == first | {f"{base}/sub/b", f"{base}/sub/deep"}
    assert paths(depth=3) == first | {f"{base}/sub/b", f"{base}/sub/deep", f"{base}/sub/deep/c"}
    by_name = {entry.name: entry for entry in box.files.list("tree")}
    assert by_name["a"].type == FileType.FILE
    assert by_name["sub"].type == FileType.DIR
    assert by_name["link"].symlink_target.endswith("a")


def test_attributes(box):
    box.files.write("attributes", "12345")
    sh(box, "chmod 640 attributes; touch -d @1700000000 attributes")
    info = box.files.get_info("attributes")
    assert (info.size, info.mode, info.permissions) == (5, 0o640, "-rw-r-----")
    assert (info.owner, info.group, info.type) == ("user", "user", FileType.FILE)
    assert info.modified_time.timestamp() == 1_700_000_000


def test_metadata_of_a_file(box):
    info = box.files.write("tagged", "x", metadata={"author": "ann"})
    assert info.metadata == {"author": "ann"}
    assert box.files.get_info("tagged").metadata == {"author": "ann"}
    box.files.write("tagged", "y")
    assert not box.files.get_info("tagged").metadata


def test_rename_and_remove(box):
    box.files.write("old/name", "content")
    moved = box.files.rename("old/name", "new/place/name")
    assert moved.path == "/home/user/new/place/name"
    assert box.files.read("new/place/name") == "content"
    assert not box.files.exists("old/name")
    box.files.remove("new")
    assert not box.files.exists("new")
    box.files.remove("new")


def test_a_read_through_a_link(box):
    box.files.write("target", "behind")
    sh(box, "ln -sf target link")
    assert box.files.read("link") == "behind"
    assert box.commands.run("readlink link", timeout=PATIENCE).stdout == "target\n"
