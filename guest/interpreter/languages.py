"""The languages that contexts speak, and how a context of each is started in this image.

A language that is known but that the image cannot run is refused with a sentence about what is missing.
"""

from __future__ import annotations

import os
import pwd
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from wire import Refused

HERE = Path(__file__).resolve().parent
ALIASES = {"js": "javascript", "ts": "typescript", "py": "python", "sh": "bash", "shell": "bash"}
KNOWN = ("python", "javascript", "typescript", "bash", "r", "java")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DEFAULT_HOME = "/home/user"
DEFAULT_USER = "user"


@dataclass(frozen=True)
class Account:
    """The user as which contexts run; None as uid means the server's own."""

    name: str
    home: str
    uid: Optional[int]
    gid: Optional[int]


def account() -> Account:
    """`user` if the server is root and there is one, otherwise who the server is."""
    if os.geteuid() == 0:
        try:
            entry = pwd.getpwnam(DEFAULT_USER)
            return Account(entry.pw_name, entry.pw_dir, entry.pw_uid, entry.pw_gid)
        except KeyError:
            pass
    home = os.environ.get("HOME") or "/"
    return Account(os.environ.get("USER") or "root", home, None, None)


def environment(who: Account) -> dict[str, str]:
    """What a context finds in its environment: the server's, with the user's own part."""
    own = dict(os.environ)
    own.setdefault("PATH", PATH)
    own.setdefault("LANG", "C.UTF-8")
    own.update(HOME=who.home, USER=who.name, LOGNAME=who.name)
    own.setdefault("SHELL", "/bin/bash")
    for name in ("PYTHONSTARTUP", "PS1", "PROMPT_COMMAND", "BASH_ENV", "ENV"):
        own.pop(name, None)
    return own


def default_directory(who: Account) -> str:
    """Where a context starts if nobody says otherwise."""
    for directory in (DEFAULT_HOME, who.home):
        if os.path.isdir(directory):
            return directory
    return "/"


def canonical(name: Optional[str]) -> str:
    """The language of a request, without aliases; Python if none is named."""
    lower = (name or "python").strip().lower()
    language = ALIASES.get(lower, lower)
    if language not in KNOWN:
        raise Refused(400, f"the language {lower[:40]!r} is not known; there are {', '.join(KNOWN)}")
    return language


@dataclass(frozen=True)
class Launch:
    """How a context's process is started."""

    argv: list[str]
    drains_itself: bool
    """It empties its own pipes of output in the order of its events, and is only helped when it cannot."""


def launch(language: str, python: Optional[str], fds: dict[str, int]) -> Launch:
    """The command of a context; `fds` are the descriptors that it inherits, by name."""
    if language == "python":
        names = ("requests", "events", "stdout", "stderr")
        numbers = [str(fds[name]) for name in names]
        script = str(HERE / "python_context.py")
        return Launch([python or sys.executable, script, *numbers], True)
    if language in ("javascript", "typescript"):
        node = shutil.which("node") or shutil.which("nodejs")
        if node is None:
            raise Refused(501, f"{language} needs Node, which this image does not have")
        script = str(HERE / "node_context.js")
        numbers = [str(fds["requests"]), str(fds["events"])]
        return Launch([node, "--no-warnings", script, language, *numbers], False)
    if language == "bash":
        bash = shutil.which("bash")
        if bash is None:
            raise Refused(501, "bash is not in this image")
        return Launch([bash, "--noprofile", "--norc", "--noediting", "-i", "-s"], False)
    program = {"r": "R", "java": "a Java shell"}[language]
    raise Refused(501, f"the language {language!r} is not available: the image has no kernel for {program}")
