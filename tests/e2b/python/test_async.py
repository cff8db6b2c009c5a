"""The asynchronous SDK, which streams where the other one asks."""

import asyncio

from e2b import AsyncSandbox, FilesystemEventType

from support import PATIENCE, RUN, TIMEOUT


def test_commands_watching_and_terminals():
    asyncio.run(asyncio.wait_for(story(), 300))


async def story():
    sandbox = await AsyncSandbox.create(timeout=TIMEOUT, metadata={"run": RUN})
    try:
        await many_commands(sandbox)
        await watching(sandbox)
        await streaming(sandbox)
    finally:
        await sandbox.kill()
    assert not await sandbox.is_running()


async def many_commands(sandbox):
    asked = [sandbox.commands.run(f"echo {n}", timeout=PATIENCE) for n in range(5)]
    assert [done.stdout for done in await asyncio.gather(*asked)] == [f"{n}\n" for n in range(5)]


async def watching(sandbox):
    await sandbox.files.make_dir("watched")
    seen = asyncio.Event()

    def on_event(event):
        if event.type == FilesystemEventType.CREATE and event.name == "sub/file":
            seen.set()

    await sandbox.files.make_dir("watched/sub")
    handle = await sandbox.files.watch_dir("watched", on_event, recursive=True, timeout=0)
    await sandbox.files.write("watched/sub/file", "1")
    await asyncio.wait_for(seen.wait(), 60)
    await handle.stop()


async def streaming(sandbox):
    lines = []
    handle = await sandbox.commands.run(
        "read line; echo got $line", background=True, stdin=True, on_stdout=lines.append, timeout=PATIENCE
    )
    await sandbox.commands.send_stdin(handle.pid, "this\n")
    done = await handle.wait()
    assert "".join(lines) == done.stdout == "got this\n"
