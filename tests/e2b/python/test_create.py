"""Creating sandboxes: what they are told, what they say of themselves, what is refused."""

import datetime
import re
import uuid

import pytest
from e2b import AuthenticationException, NotFoundException, Sandbox, SandboxState

from support import PATIENCE, RUN


def test_a_sandbox_says_what_it_is(box):
    assert re.fullmatch("[a-z0-9]+", box.sandbox_id)
    info = box.get_info()
    assert info.sandbox_id == box.sandbox_id
    assert info.state == SandboxState.RUNNING
    assert info.metadata == {"run": RUN}
    assert info.template_id
    assert info.cpu_count >= 1
    assert info.memory_mb >= 128
    assert re.fullmatch(r"\d+\.\d+\.\d+", info.envd_version)
    now = datetime.datetime.now(datetime.timezone.utc)
    assert abs(now - info.started_at) < datetime.timedelta(minutes=15)
    assert info.end_at > now
    assert Sandbox.get_info(box.sandbox_id).sandbox_id == box.sandbox_id


def test_it_runs_as_told_of_by_anybody(box):
    other = Sandbox.connect(box.sandbox_id)
    assert other.is_running()
    other.files.write("from-other", "1")
    assert box.files.read("from-other") == "1"


def test_environment_reaches_every_command(make):
    sandbox = make(envs={"GREETING": "hello world", "EMPTY": ""})
    done = sandbox.commands.run('echo "$GREETING/${EMPTY-unset}"', timeout=PATIENCE)
    assert done.stdout == "hello world/\n"
    told = sandbox.commands.run('echo "$GREETING"', envs={"GREETING": "other"}, timeout=PATIENCE)
    assert told.stdout == "other\n"


def test_the_usual_user_and_root(box):
    def who(**options):
        return box.commands.run("id -un; pwd", timeout=PATIENCE, **options).stdout.split()

    assert who() == ["user", "/home/user"]
    assert who(user="root") == ["root", "/root"]


def test_kill_is_final(make):
    sandbox = make()
    assert sandbox.kill()
    assert not sandbox.is_running()
    assert not sandbox.kill()
    assert not Sandbox.kill(sandbox.sandbox_id)
    with pytest.raises(NotFoundException):
        sandbox.get_info()
    with pytest.raises(NotFoundException):
        Sandbox.connect(sandbox.sandbox_id)
    with pytest.raises(Exception, match="(?i)not found|not running|timeout"):
        sandbox.commands.run("true", timeout=PATIENCE)


def test_leaving_its_block_kills_it():
    with Sandbox.create(timeout=600, metadata={"run": RUN}) as sandbox:
        assert sandbox.is_running()
    assert not sandbox.is_running()


def test_the_same_request_makes_one_sandbox(make):
    key = str(uuid.uuid4())
    first = make(idempotency_key=key)
    again = make(idempotency_key=key)
    assert first.sandbox_id == again.sandbox_id


def test_an_unknown_template_is_named():
    with pytest.raises(Exception, match="no-such-template"):
        Sandbox.create("no-such-template", timeout=60)


def test_a_wrong_key_opens_nothing():
    with pytest.raises(AuthenticationException):
        Sandbox.create(api_key="e2b_" + "0" * 64)
    with pytest.raises(AuthenticationException):
        Sandbox.list(api_key="e2b_" + "0" * 64).next_items()


def test_no_internet_is_said_and_kept(make):
    sandbox = make(allow_internet_access=False)
    assert sandbox.get_info().allow_internet_access is False
    tried = sandbox.commands.run(
        "curl -s -m 10 -o /dev/null http://1.1.1.1/ && echo open || echo closed", timeout=PATIENCE
    )
    assert tried.stdout == "closed\n"
