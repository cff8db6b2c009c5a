"""Watching directories, as the synchronous SDK does it: it asks for what has happened."""

import pytest
from e2b import FileNotFoundException, FilesystemEventType, FileType

from support import PATIENCE, until


class Seen:
    """All events so far."""

    def __init__(self, handle):
        self.handle = handle
        self.events = []

    def has(self, kind, name):
        self.events.extend(self.handle.get_new_events())
        return [event for event in self.events if event.type == kind and event.name == name]

    def wait(self, kind, name):
        return until(f"{kind} of {name}", lambda: self.has(kind, name), 60)[0]


def test_everything_that_happens(box):
    box.files.make_dir("watched")
    seen = Seen(box.files.watch_dir("watched"))
    box.files.write("watched/a", "1")
    seen.wait(FilesystemEventType.CREATE, "a")
    seen.wait(FilesystemEventType.WRITE, "a")
    box.commands.run("chmod 600 watched/a", timeout=PATIENCE)
    seen.wait(FilesystemEventType.CHMOD, "a")
    box.files.rename("watched/a", "watched/b")
    seen.wait(FilesystemEventType.RENAME, "a")
    box.files.remove("watched/b")
    seen.wait(FilesystemEventType.REMOVE, "b")
    seen.handle.stop()


def test_deeper_only_if_asked(box):
    box.files.make_dir("deep/sub")
    flat = Seen(box.files.watch_dir("deep"))
    deep = Seen(box.files.watch_dir("deep", recursive=True))
    box.files.write("deep/sub/file", "1")
    deep.wait(FilesystemEventType.CREATE, "sub/file")
    box.files.write("deep/last", "1")
    flat.wait(FilesystemEventType.CREATE, "last")
    assert not flat.has(FilesystemEventType.CREATE, "sub/file")
    box.files.make_dir("deep/new")
    deep.wait(FilesystemEventType.CREATE, "new")
    box.files.write("deep/new/file", "1")
    deep.wait(FilesystemEventType.CREATE, "new/file")
    flat.handle.stop()
    deep.handle.stop()


def test_entries_come_along(box):
    box.files.make_dir("entries")
    seen = Seen(box.files.watch_dir("entries", include_entry=True))
    box.files.write("entries/a", "123")
    entry = seen.wait(FilesystemEventType.WRITE, "a").entry
    assert (entry.path, entry.type) == ("/home/user/entries/a", FileType.FILE)
    seen.handle.stop()


def test_only_directories_that_are_there(box):
    with pytest.raises(FileNotFoundException):
        box.files.watch_dir("not-there")
