"""Makes a forked sandbox's interpreters draw new random numbers.

Installed in the guest's images as `sitecustomize.py`, or where a distribution has one of its own
(Debian does, and it comes first) as `ramet_reseed.py` beside `ramet_reseed.pth`. When the machine is forked, the agent
sends signal 48 to every process that has put a file with its pid into /run/ramet/reseed and catches
that signal, before any process of the child runs on. Here an interpreter does both, and answers the
signal by seeding `random` and numpy's global generator anew, if they are in use.

The signal comes at any point of a program: in the handler of the one before, in `numpy.random.seed()`,
in an import. So the handler waits for no lock:

- One that is entered while it runs only notes that it was asked again, and the outer one starts over.
- numpy's lock is tried. When this thread itself is inside, the generator is exchanged for another; when
  another thread may be, a thread of its own waits in the program's stead.
- What other handlers raise in here reaches the program, after the seeds are new.

Refuses to be noticed: outside a ramet guest it does nothing, nothing is imported that is not built in or
loaded already, no error of its own leaves this file, and a program that installs a handler of its own
for the signal keeps it. Generators that a program has made itself (random.Random(1),
numpy.random.default_rng()) are its own affair.
"""


def _ramet():
    import os
    import sys

    directory = "/run/ramet/reseed"
    number = 48  # SIGRTMIN + 14 of glibc; a fixed number, because libraries disagree about SIGRTMIN.
    if not os.path.isdir(directory):
        return

    import _signal  # The part of `signal` in C: importing the rest would load `enum`.
    import _thread
    import gc
    import itertools
    import time
    from _functools import partial
    from _operator import is_not, methodcaller

    asked = 0  # Signals that were heard.
    running = False  # A handler is at work, in the main thread.
    waiting = set()  # Threads that renew numpy's generator as soon as they can.

    def reseed(_number, _frame):
        nonlocal asked, running
        asked += 1
        done = interruption = None
        # Asked once more at the end: a signal may come between the last round and `running = False`.
        while not running and done != asked:
            running = True
            try:
                while done != asked:
                    try:
                        done = asked
                        renew()
                    except BaseException as error:
                        if not foreign(error):
                            continue
                        interruption = interruption or error
                        done = None
            finally:
                running = False
        if interruption is not None:
            raise interruption

    def foreign(error):
        """Whether another handler has raised it, one of the program, that has interrupted this one."""
        if not isinstance(error, Exception):
            return True
        known = ("numpy", "random", "secrets", "os", __name__)
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] not in known:
                return True
            trace = trace.tb_next
        return False

    def renew():
        try:
            renew_random()
        finally:
            if not renew_numpy(0):
                waiter = object()
                waiting.add(waiter)
                _thread.start_new_thread(wait, (waiter,))

    def wait(waiter):
        try:
            while not renew_numpy(1):
                time.sleep(0.001)
        finally:
            waiting.discard(waiter)

    def renew_random():
        module = sys.modules.get("random")
        kind = getattr(module, "Random", None)
        if kind is None:
            return
        generator = getattr(module, "_inst", None)
        if generator is not None:
            generators = [generator]
        else:  # It is being imported: nobody has one yet, but itself.
            generators = [one for one in gc.get_objects() if type(one) is kind]
        for generator in generators:
            kind.__base__.seed(generator)
            generator.gauss_next = None

    def renew_numpy(patience):
        """Whether it is renewed; it cannot be while somebody may be inside."""
        module = sys.modules.get("numpy.random.mtrand")
        if module is None:
            return True
        state = getattr(module, "_rand", None)
        if state is None:  # It may be seeding itself with what it has drawn before.
            return not getattr(module.__spec__, "_initializing", False)
        generator = state._bit_generator
        kind, lock = type(generator), generator.lock
        fresh = type(state)(kind()).get_state(legacy=False)
        if not owned(lock) and locked(lock, patience, partial(state.set_state, fresh)):
            return True
        if len(sys._current_frames()) > 1:
            return False
        state.__init__(kind())  # The only thread was interrupted inside.
        return True

    def owned(lock):
        """Whether this thread holds a lock that it could take again."""
        check = getattr(lock, "_is_owned", None)
        return check is not None and check()

    def locked(lock, patience, action):
        """Does it with the lock, if that is to be had within so many seconds, and says so.

        No handler can interrupt this while the lock is held: between the steps is no Python code.
        """
        acquire = partial(lock.acquire, True, patience) if patience else partial(lock.acquire, False)
        steps = iter((acquire, action, lock.release))
        results = map(methodcaller("__call__"), steps)
        try:
            return all(map(is_not, results, itertools.repeat(False)))
        except Exception:
            for step in steps:
                step()
            raise

    def path():
        return os.path.join(directory, str(os.getpid()))

    def register():
        try:
            if _signal.getsignal(number) is not reseed:
                return
            os.close(os.open(path(), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except Exception:
            pass

    def unregister():
        try:
            os.unlink(path())
        except Exception:
            pass

    def forked():
        """In the child of `os.fork()`, which has none of the other threads."""
        nonlocal running
        owing = running or bool(waiting)
        running = False
        waiting.clear()
        register()
        if owing:
            reseed(number, None)

    if _signal.getsignal(number) != _signal.SIG_DFL:
        return
    _signal.signal(number, reseed)  # Refused outside the main thread, which ends this.
    register()
    import atexit

    atexit.register(unregister)
    os.register_at_fork(after_in_child=forked)


try:
    _ramet()
except Exception:
    pass
finally:
    del _ramet
