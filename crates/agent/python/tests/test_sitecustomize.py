"""The hook that makes a forked sandbox's interpreters draw new random numbers.

Each test runs a program in an interpreter of its own, in a mount namespace with a /run/ramet of its own (which needs
root). `fork()` there does what a fork of the machine does to a process: the system call alone, unseen by
Python, and signal 48 to both before they run on. What the two then draw has to differ.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
import unittest
from pathlib import Path

HOOK = Path(os.environ.get("RAMET_TEST_HOOK") or Path(__file__).resolve().parent.parent)
DEADLINE_S = 60 * float(os.environ.get("RAMET_TEST_PATIENCE", "1"))
NUMPY = importlib.util.find_spec("numpy") is not None

PRELUDE = '''
import _thread, ctypes, os, signal, sys, threading, time
libc = ctypes.PyDLL(None)  # With the GIL: nothing of Python runs between the fork and the signal.
FORK = {"x86_64": 57}[os.uname().machine]
receiving, sending = os.pipe()
child = None

def ring():
    libc.kill(libc.getpid(), 48)

def fork():
    """Forks the machine; both hear of it."""
    global child
    if not (child := libc.syscall(FORK)):
        os.close(receiving)
    ring()

def started(*words, start=_thread.start_new_thread):
    """Starts one, and remembers it."""
    alive.append(words)
    def run(function, arguments):
        function(*arguments)
        alive.remove(words)
    return start(run, words)

alive = []
_thread.start_new_thread = started  # The hook's own; `threading` keeps what it has.

def settle():
    """Waits for the threads of the hook."""
    until = time.monotonic() + 20
    while alive:
        assert time.monotonic() < until
        time.sleep(0.001)

def conclude(*drawn):
    """In both: what was drawn. They must differ in each."""
    if not child:
        os.write(sending, repr(drawn).encode())
        os._exit(0)
    os.close(sending)
    signal.alarm(10)
    other = eval(os.read(receiving, 65536) or "None")
    assert os.waitpid(child, 0)[1] == 0
    assert other is not None and len(other) == len(drawn), other
    for mine, others in zip(drawn, other):
        assert mine != others, mine
    print("fine")

def at(event, name, action, module=None):
    """Does something once, at the next event of a function (see sys.setprofile)."""
    def look(frame, what, argument):
        called = argument.__name__ if what.startswith("c_") else frame.f_code.co_name
        if what == event and called == name and (module is None or frame.f_globals["__name__"] == module):
            sys.setprofile(None)
            action()
    sys.setprofile(look)
'''


class HookTest(unittest.TestCase):
    """Programs in an interpreter with the hook."""

    def run_program(self, program: str) -> str:
        """Runs one to its end, which must be a good one. What it has written."""
        mount = 'mount -t tmpfs none /run && mkdir -p /run/ramet/reseed && exec "$@"'
        words = ["unshare", "--mount", "sh", "-c", mount, "sh", sys.executable, "-c"]
        done = subprocess.Popen(
            [*words, PRELUDE + textwrap.dedent(program)],
            env={**os.environ, "PYTHONPATH": str(HOOK), "PYTHONFAULTHANDLER": "1"},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0,
        )
        try:
            written, errors = done.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            os.killpg(done.pid, 6)  # Shows the stacks.
            written, errors = done.communicate()
            self.fail(f"the program waits for ever:\n{errors}")
        finally:
            try:
                os.killpg(done.pid, 9)
            except ProcessLookupError:
                pass
        self.assertEqual(done.returncode, 0, errors)
        return written

    def assert_fine(self, program: str) -> None:
        """Runs one that has to say so."""
        self.assertEqual(self.run_program(program), "fine\n")


class Random(HookTest):
    """The generator of `random`, and the program around it."""

    def test_copies_draw_different_numbers(self) -> None:
        self.assert_fine("""
            import random
            random.seed(7)
            random.gauss(0, 1)
            fork()
            conclude(random.gauss(0, 1), random.random())
        """)

    def test_a_fork_inside_seed(self) -> None:
        self.assert_fine("""
            import random
            at("call", "seed", fork)
            random.seed()
            conclude(random.random())
        """)

    def test_a_fork_while_random_is_imported(self) -> None:
        # Its generator is seeded, and has no name yet.
        self.assert_fine("""
            at("return", "__init__", fork, "random")
            import random
            conclude(random.random())
        """)

    def test_a_fork_with_a_lock_held(self) -> None:
        self.assert_fine("""
            import random
            lock = threading.Lock()
            with lock:
                fork()
                assert lock.locked()
            assert not lock.locked()
            conclude(random.random())
        """)

    def test_a_fork_in_an_atexit_handler(self) -> None:
        self.assert_fine("""
            import atexit, random
            @atexit.register
            def last():
                fork()
                number = random.random()
                sys.stdout.flush()
                conclude(number)
        """)

    def test_a_generator_of_the_programs_own_goes_on(self) -> None:
        self.assert_fine("""
            import random
            own, twin = random.Random(1), random.Random(1)
            fork()
            assert own.random() == twin.random()
            conclude(random.random())
        """)

    def test_a_handler_of_the_programs_own_is_kept(self) -> None:
        self.assert_fine("""
            heard = []
            signal.signal(48, lambda *_: heard.append(1))
            ring()
            assert heard == [1]
            print("fine")
        """)

    def test_an_exception_of_another_handler_reaches_the_program(self) -> None:
        # It comes while the hook is at work. The seeds are new nevertheless, and the next fork is heard as well.
        for kind in ("KeyboardInterrupt", "TimeoutError", "ValueError"):
            with self.subTest(kind):
                self.assert_fine(f"""
                    import random
                    def late(*_):
                        raise {kind}
                    signal.signal(signal.SIGALRM, late)
                    random.seed(1)
                    at("call", "renew_random", lambda: libc.kill(libc.getpid(), signal.SIGALRM))
                    try:
                        fork()
                        len("")
                    except {kind}:
                        pass
                    else:
                        raise SystemExit("it was lost")
                    signal.signal(signal.SIGALRM, signal.SIG_DFL)
                    before = random.getstate()
                    ring()
                    assert random.getstate() != before
                    conclude(random.random())
                """)

    def test_a_child_of_os_fork_is_reached(self) -> None:
        self.assert_fine("""
            import random
            if not (pid := os.fork()):
                assert os.path.exists(f"/run/ramet/reseed/{os.getpid()}")
                state = random.getstate()
                ring()
                os._exit(random.getstate() == state)
            assert os.waitpid(pid, 0)[1] == 0
            print("fine")
        """)

    def test_a_child_of_os_fork_that_is_born_in_the_handler_is_reached(self) -> None:
        # A thread forks while the main thread's handler is at work: it will never end in the child.
        self.assert_fine("""
            import random
            random.seed(1)
            results, go, gone = [], threading.Event(), threading.Event()
            def work():
                go.wait(10)
                if not (pid := os.fork()):
                    state = random.getstate()
                    ring()
                    time.sleep(0)
                    os._exit(random.getstate() == state)
                results.append(os.waitpid(pid, 0)[1])
                gone.set()
            holder = threading.Thread(target=work)
            holder.start()
            at("call", "renew_random", lambda: (go.set(), gone.wait(20)))
            ring()
            holder.join(20)
            assert results == [0], results
            print("fine")
        """)

    def test_nothing_is_loaded_and_nothing_said(self) -> None:
        written = self.run_program("print('random' in sys.modules, 'numpy' in sys.modules)")
        self.assertEqual(written, "False False\n")


@unittest.skipUnless(NUMPY, "needs numpy")
class Numpy(HookTest):
    """numpy's global generator, which has a lock."""

    def test_copies_draw_different_numbers(self) -> None:
        self.assert_fine("""
            import numpy
            numpy.random.seed(7)
            numpy.random.normal()
            fork()
            conclude(numpy.random.normal(), numpy.random.random())
        """)

    def test_a_signal_after_each_step_of_the_handler(self) -> None:
        # As a second fork right after the first, or a restore: at every call, return and line.
        self.assert_fine("""
            import numpy
            numpy.random.seed(1)
            left = 0
            def look(frame, event, argument):
                global left
                left -= 1
                if left == 0:
                    sys.settrace(None)
                    ring()
                return look
            steps = 0
            while True:
                steps += 1
                left = steps
                sys.settrace(look)
                ring()
                sys.settrace(None)
                if left > 0:
                    break
            assert steps > 50, steps
            fork()
            conclude(numpy.random.random())
        """)

    def test_a_fork_after_each_step_of_the_handler(self) -> None:
        self.assert_fine("""
            import numpy, random
            for step in range(1, 200, 7):
                left = step
                def look(frame, event, argument):
                    global left
                    left -= 1
                    if left == 0:
                        sys.settrace(None)
                        fork()
                    return look
                child = None
                sys.settrace(look)
                ring()
                sys.settrace(None)
                if child is None:
                    break
                drawn = numpy.random.random(), random.random()
                if not child:
                    os.write(sending, repr(drawn).encode())
                    os._exit(0)
                other = eval(os.read(receiving, 65536))
                assert os.waitpid(child, 0)[1] == 0
                assert not set(drawn) & set(other), (step, drawn, other)
            print("fine")
        """)

    def test_a_fork_at_each_step_of_seed(self) -> None:
        # With its lock held, and with the new seed drawn already.
        self.assert_fine("""
            import numpy
            step = forks = 0
            while True:
                step += 1
                left, child = step, None
                def look(frame, event, argument):
                    global left
                    left -= 1
                    if left == 0:
                        sys.setprofile(None)
                        fork()
                sys.setprofile(look)
                numpy.random.seed()
                sys.setprofile(None)
                drawn = numpy.random.random(4).tolist()
                if child is None:
                    break
                if not child:
                    os.write(sending, repr(drawn).encode())
                    os._exit(0)
                other = eval(os.read(receiving, 65536))
                assert os.waitpid(child, 0)[1] == 0
                assert not set(drawn) & set(other), (step, drawn, other)
                forks += 1
            assert forks > 3, forks
            print("fine")
        """)

    def test_a_thread_that_holds_the_lock_is_not_waited_for(self) -> None:
        self.assert_fine("""
            import numpy
            lock = numpy.random.mtrand._rand._bit_generator.lock
            held, done = threading.Event(), threading.Event()
            def hold():
                with lock:
                    held.set()
                    assert done.wait(20)
            before = numpy.random.get_state()[1].tolist()
            holder = threading.Thread(target=hold)
            holder.start()
            assert held.wait(20)
            ring()
            assert holder.is_alive()  # It has come back, though the lock is held.
            done.set()
            holder.join(20)
            settle()
            assert numpy.random.get_state()[1].tolist() != before
            print("fine")
        """)

    def test_a_child_of_os_fork_owes_what_its_parent_owed(self) -> None:
        # The thread that waits for the lock in the parent is not there in the child, nor is the one that holds it.
        self.assert_fine("""
            import numpy
            lock = numpy.random.mtrand._rand._bit_generator.lock
            held, done = threading.Event(), threading.Event()
            def hold():
                with lock:
                    held.set()
                    assert done.wait(20)
            before = numpy.random.get_state()[1].tolist()
            holder = threading.Thread(target=hold)
            holder.start()
            assert held.wait(20)
            ring()
            if not (pid := os.fork()):
                signal.alarm(10)
                numpy.random.random()
                os._exit(numpy.random.get_state()[1].tolist() == before)
            assert os.waitpid(pid, 0)[1] == 0
            done.set()
            holder.join(20)
            print("fine")
        """)

    def test_threads_that_draw_and_forks_at_any_time(self) -> None:
        self.assert_fine("""
            import numpy
            ended = False
            def draw():
                while not ended:
                    numpy.random.random(2000)
            threads = [threading.Thread(target=draw) for _ in range(3)]
            for thread in threads:
                thread.start()
            for _ in range(300):
                ring()
                if _ % 10 == 0:
                    time.sleep(0.001)
            ended = True
            for thread in threads:
                thread.join(20)
                assert not thread.is_alive()
            settle()
            assert numpy.random.get_state()[2] <= 624
            fork()
            conclude(numpy.random.random())
        """)

    def test_a_handler_of_the_program_never_finds_the_lock_held_by_the_hook(self) -> None:
        # It draws a number itself, at any point of the hook.
        self.assert_fine("""
            import numpy
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
            drawn = []
            signal.signal(signal.SIGUSR1, lambda *_: drawn.append(numpy.random.random()))
            steps = 0
            while len(drawn) == steps:
                steps += 1
                left = steps
                def look(frame, event, argument):
                    global left
                    left -= 1
                    if left == 0:
                        sys.settrace(None)
                        libc.kill(libc.getpid(), signal.SIGUSR1)
                    return look
                sys.settrace(look)
                ring()
                sys.settrace(None)
            assert steps > 50, steps
            print("fine")
        """)

    def test_a_fork_at_any_time_of_the_import(self) -> None:
        # Signals all along; and afterwards everything works.
        self.assert_fine("""
            ended = False
            main = threading.get_ident()
            def rings():
                while not ended:
                    signal.pthread_kill(main, 48)
                    time.sleep(0.0005)
            holder = threading.Thread(target=rings)
            holder.start()
            import numpy.random
            ended = True
            holder.join(20)
            settle()
            fork()
            conclude(numpy.random.random())
        """)

    def test_a_fork_while_the_generator_is_made(self) -> None:
        # numpy.random has drawn the seed of its generator, and not used it yet.
        self.assert_fine("""
            import secrets
            made = []
            def drawn():
                made.append(1)
                fork()
            at("return", secrets.randbits.__name__, drawn)
            import numpy.random
            assert made
            settle()
            conclude(numpy.random.random())
        """)

    def test_another_kind_of_generator_is_renewed_as_well(self) -> None:
        if not hasattr(importlib.import_module("numpy.random"), "set_bit_generator"):
            self.skipTest("this numpy has but one kind")
        self.assert_fine("""
            import numpy
            numpy.random.set_bit_generator(numpy.random.PCG64(7))
            fork()
            conclude(numpy.random.random())
            assert isinstance(numpy.random.get_bit_generator(), numpy.random.PCG64)
        """)


if __name__ == "__main__":
    unittest.main()
