"""Makes a forked sandbox's interpreters draw new random numbers.

Installed in the guest's images as `sitecustomize.py`, or where a distribution has one of its own
(Debian does, and it comes first) as `ramet_reseed.py` beside `ramet_reseed.pth`. When the machine is forked, the agent
sends signal 48 to every process that has put a file with its pid into /run/ramet/reseed and catches
that signal, before any process of the child runs on. Here an interpreter does both, and answers the
signal by seeding `random` and numpy's global generator anew, if they are in use.

Refuses to be noticed: outside a ramet guest it does nothing, nothing is imported beyond what every
interpreter has loaded, no error leaves this file, and a program that installs a handler of its own
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

    def reseed(_number, _frame):
        random = sys.modules.get("random")
        numpy_random = sys.modules.get("numpy.random")
        for module in (random, numpy_random):
            seed = getattr(module, "seed", None)
            if seed is not None:
                try:
                    seed()
                except Exception:
                    pass

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

    if _signal.getsignal(number) != _signal.SIG_DFL:
        return
    _signal.signal(number, reseed)  # Refused outside the main thread, which ends this.
    register()
    import atexit

    atexit.register(unregister)
    os.register_at_fork(after_in_child=register)


try:
    _ramet()
except Exception:
    pass
finally:
    del _ramet
