"""Sandboxes for the flows: one for a module where isolation is not the point, or a fresh one."""

import os

import pytest
from e2b import Sandbox

from support import RUN, TIMEOUT, version

# Flows of packages that only some environments have.
OF_PACKAGES = {
    "test_agents.py": "openai-agents",
    "test_code.py": "e2b-code-interpreter",
    "test_contexts.py": "e2b-code-interpreter",
    "test_smolagents.py": "smolagents",
}
collect_ignore = [flow for flow, package in OF_PACKAGES.items() if version(package) is None]


def pytest_configure(config):
    """Says at once what is missing."""
    if config.option.collectonly:
        return
    missing = [name for name in ("E2B_API_KEY", "E2B_API_URL") if not os.environ.get(name)]
    if missing:
        raise pytest.UsageError(f"not set: {', '.join(missing)}")


class Maker:
    """Makes sandboxes of a class and kills them at the end."""

    def __init__(self, kind):
        self.kind = kind
        self.made = []

    def __call__(self, *arguments, metadata=None, **options):
        options.setdefault("timeout", TIMEOUT)
        made = self.kind.create(*arguments, metadata={"run": RUN, **(metadata or {})}, **options)
        return self.keep(made)

    def keep(self, made):
        """Kills this one, too."""
        self.made.append(made)
        return made

    def clear(self):
        """Kills them; those that are gone already are fine."""
        for sandbox in self.made:
            sandbox.kill()


@pytest.fixture
def make():
    """Makes sandboxes for one test."""
    maker = Maker(Sandbox)
    yield maker
    maker.clear()


@pytest.fixture(scope="module")
def box():
    """A sandbox for all tests of a module."""
    maker = Maker(Sandbox)
    yield maker()
    maker.clear()


@pytest.fixture(scope="module")
def code():
    """A sandbox with the code interpreter, for all tests of a module."""
    interpreter = pytest.importorskip("e2b_code_interpreter")
    maker = Maker(interpreter.Sandbox)
    yield maker()
    maker.clear()


@pytest.fixture
def make_code():
    """Makes sandboxes with the code interpreter for one test."""
    interpreter = pytest.importorskip("e2b_code_interpreter")
    maker = Maker(interpreter.Sandbox)
    yield maker
    maker.clear()
