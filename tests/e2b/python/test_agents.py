"""The OpenAI Agents SDK: its sandbox client drives a sandbox, without a model here. It has an old e2b of its own."""

import asyncio
import io
import tarfile
from pathlib import Path

import agents.extensions.sandbox.e2b as client
import pytest

from support import PATIENCE, RUN


pytestmark = pytest.mark.smoke

# Its own patience is for machines that are not emulated.
TIMES = {"keepalive_s": 60, "cleanup_s": 60, "fast_op_s": 120, "file_upload_s": 120, "snapshot_tar_s": 300}


def test_a_session_of_an_agent():
    asyncio.run(asyncio.wait_for(story(), 400))


async def story():
    options = client.E2BSandboxClientOptions(
        sandbox_type="e2b", timeout=900, metadata={"run": RUN}, envs={"MARK": "m4rk"}, timeouts=TIMES
    )
    session = await client.E2BSandboxClient().create(options=options)
    try:
        await session.start()
        await commands(session)
        await files(session)
        await terminal(session)
        assert await session.running()
    finally:
        await session.shutdown()
    assert not await session.running()


async def commands(session):
    done = await session.exec("echo $MARK; echo bad >&2; exit 3", timeout=PATIENCE)
    assert (done.stdout, done.stderr, done.exit_code) == (b"m4rk\n", b"bad\n", 3)
    assert not done.ok()


async def files(session):
    data = bytes(range(256)) * 16
    await session.mkdir(Path("made"), parents=True)
    await session.write(Path("made/data.bin"), io.BytesIO(data))
    assert (await session.read(Path("made/data.bin"))).read() == data
    assert [entry.path.rsplit("/", 1)[-1] for entry in await session.ls("made")] == ["data.bin"]
    kept = tarfile.open(fileobj=await session.persist_workspace())
    (member,) = [one for one in kept.getmembers() if one.name.endswith("made/data.bin")]
    assert kept.extractfile(member).read() == data


async def terminal(session):
    update = await session.pty_exec_start("cat", tty=True, yield_time_s=2)
    answer = await session.pty_write_stdin(session_id=update.process_id, chars="typed\n", yield_time_s=10)
    assert b"typed" in bytes(answer.output)
    await session.pty_terminate_all()
