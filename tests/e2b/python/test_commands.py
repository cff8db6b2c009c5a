"""Commands: in the foreground and the background, their output, input, signals and ends."""

import threading

import pytest
from e2b import (
    AuthenticationException,
    CommandExitException,
    InvalidArgumentException,
    NotFoundException,
    Sandbox,
    TimeoutException,
)

from support import PATIENCE, until


def run(box, line, **options):
    options.setdefault("timeout", PATIENCE)
    return box.commands.run(line, **options)


def alive(box, marker):
    """Whether a process has this in its command line; the question itself is none."""
    pattern = f"[{marker[0]}]{marker[1:]}"
    return run(box, f"pgrep -f '{pattern}' >/dev/null && echo yes || echo no").stdout == "yes\n"


def test_a_failure_has_all_of_its_output(box):
    with pytest.raises(CommandExitException) as failed:
        run(box, "echo out; echo err >&2; exit 3")
    assert failed.value.exit_code == 3
    assert failed.value.stdout == "out\n"
    assert failed.value.stderr == "err\n"


def test_a_signal_is_no_success(box):
    with pytest.raises(CommandExitException) as killed:
        run(box, "kill -9 $$")
    assert killed.value.exit_code != 0
    assert "kill" in (killed.value.error or "").lower()


def test_directory_and_environment(box):
    done = run(box, 'pwd; echo "$A|$B"', cwd="/tmp", envs={"A": "1 2", "B": "ü"})
    assert done.stdout == "/tmp\n1 2|ü\n"
    with pytest.raises(InvalidArgumentException):
        run(box, "true", cwd="/no/such/directory")


def test_an_unknown_user_is_refused(box):
    with pytest.raises(AuthenticationException):
        run(box, "true", user="nobody-here")


def test_output_is_whole(box):
    size = 3_000_000
    done = run(box, f"head -c {size} /dev/zero | tr '\\0' x; echo; echo end >&2")
    assert len(done.stdout) == size + 1
    assert set(done.stdout) == {"x", "\n"}
    assert done.stderr == "end\n"


def test_characters_survive_any_split(box):
    done = run(box, "python3 -c \"print('äü€😀' * 20000, end='')\"")
    assert done.stdout == "äü€😀" * 20000


def test_output_comes_while_it_runs(box):
    """The command goes on only after its first line was seen here."""
    seen, errors = [], []

    def on_stdout(text):
        seen.append(text)
        if "one" in text:
            box.files.write("/tmp/go", "")

    done = run(
        box,
        "rm -f /tmp/go; echo one; until [ -e /tmp/go ]; do sleep 0.2; done; echo two; echo e >&2",
        on_stdout=on_stdout,
        on_stderr=errors.append,
    )
    assert "".join(seen) == done.stdout == "one\ntwo\n"
    assert "".join(errors) == done.stderr == "e\n"


def test_the_background_goes_on_alone(box):
    handle = run(box, "echo first; sleep 2; echo done > /tmp/alone", background=True)
    shown = {one.pid: one for one in box.commands.list()}
    assert handle.pid in shown
    assert any("/tmp/alone" in word for word in shown[handle.pid].args)
    handle.disconnect()
    until("it ended by itself", lambda: box.files.exists("/tmp/alone"))
    assert box.files.read("/tmp/alone") == "done\n"
    until("it is listed no more", lambda: handle.pid not in [p.pid for p in box.commands.list()])


def test_somebody_else_hears_its_end(box):
    started = run(box, "until [ -e /tmp/heard ]; do sleep 0.2; done; echo heard; exit 4", background=True)
    started.disconnect()
    other = Sandbox.connect(box.sandbox_id).commands.connect(started.pid, timeout=PATIENCE)
    assert other.pid == started.pid
    box.files.write("/tmp/heard", "")
    with pytest.raises(CommandExitException) as ended:
        other.wait()
    assert (ended.value.exit_code, ended.value.stdout) == (4, "heard\n")


def test_nobody_is_there_to_connect_to(box):
    with pytest.raises(NotFoundException):
        box.commands.connect(999_999)


def test_input_is_passed_on(box):
    cat = run(box, "cat; echo over", background=True, stdin=True)
    box.commands.send_stdin(cat.pid, "hello ")
    cat.send_stdin(b"w\xc3\xb6rld\n")
    cat.close_stdin()
    assert cat.wait().stdout == "hello wörld\nover\n"


def test_input_can_be_a_stream(box):
    count = run(box, "wc -c", background=True, stdin=True)
    box.commands.stream_input(count.pid, (b"x" * 10_000 for _ in range(20)), timeout=PATIENCE)
    count.close_stdin()
    assert count.wait().stdout.strip() == "200000"


def test_no_input_is_an_end_of_file(box):
    assert run(box, "cat; echo over").stdout == "over\n"


def test_kill_ends_a_command(box):
    sleeper = run(box, "sleep 4711", background=True)
    assert alive(box, "sleep 4711")
    assert sleeper.kill()
    with pytest.raises(CommandExitException):
        sleeper.wait()
    until("it is gone", lambda: not alive(box, "sleep 4711"))
    assert not box.commands.kill(sleeper.pid)


def test_a_command_ends_when_its_time_is_over(box):
    with pytest.raises(TimeoutException):
        run(box, "sleep 4712", timeout=3)
    until("it is gone", lambda: not alive(box, "sleep 4712"))


def test_without_a_time_it_goes_on(box):
    sleeper = run(box, "sleep 4713", background=True, timeout=0)
    sleeper.disconnect()
    assert alive(box, "sleep 4713")
    assert box.commands.kill(sleeper.pid)


def test_many_at_once(box):
    results = {}

    def ask(number):
        results[number] = run(box, f"echo {number}").stdout

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: f"{number}\n" for number in range(8)}
