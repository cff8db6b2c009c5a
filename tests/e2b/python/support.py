"""What the flows share: which SDK is installed, how to wait, how to reach a port of a sandbox."""

import importlib.metadata
import os
import re
import time
import urllib.error
import urllib.request
import uuid
from contextlib import contextmanager

import pytest

# In the metadata of every sandbox of this run, so that what is left over can be found.
RUN = f"run-{uuid.uuid4().hex[:12]}"
# Guests may be emulated: a command that takes a moment elsewhere takes a while there.
PATIENCE = 180
# Sandboxes end by themselves if a run is broken off.
TIMEOUT = 900

DOMAIN = os.environ.get("E2B_TEST_DOMAIN", "")
OTHER_KEY = os.environ.get("E2B_TEST_OTHER_KEY", "")


def version(package="e2b"):
    """The installed version, or none."""
    try:
        text = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
    return tuple(int(part) for part in text.split(".")[:3])


def since(minimum, feature):
    """Skips where the SDK is older than the feature."""
    have = version()
    shown = ".".join(map(str, have))
    least = tuple(int(part) for part in minimum.split("."))
    return pytest.mark.skipif(
        have < least, reason=f"e2b {shown} has no {feature}, which came with {minimum}"
    )


needs_domain = pytest.mark.skipif(not DOMAIN, reason="E2B_TEST_DOMAIN is not set")
needs_other_key = pytest.mark.skipif(not OTHER_KEY, reason="E2B_TEST_OTHER_KEY is not set")


@contextmanager
def domain_mode():
    """The SDK finds everything by host names, over TLS, as with E2B itself."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("E2B_API_URL", "E2B_SANDBOX_URL", "E2B_VOLUME_API_URL"):
            patch.delenv(name, raising=False)
        patch.setenv("E2B_DOMAIN", DOMAIN)
        yield


def until(what, check, seconds=PATIENCE):
    """Asks until the answer is true, and gives it."""
    end = time.monotonic() + seconds
    while True:
        answer = check()
        if answer:
            return answer
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.3)


def port_of(sandbox, port, path="/", headers=()):
    """Asks a server in a sandbox through the node, by headers, as on a single port."""
    request = urllib.request.Request(
        os.environ["E2B_API_URL"].rstrip("/") + path,
        headers={
            "E2b-Sandbox-Id": sandbox.sandbox_id,
            "E2b-Sandbox-Port": str(port),
            **dict(headers),
        },
    )
    return answer_of(request)


def answer_of(request):
    """Status and text, whatever the status."""
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")


def serve_directory(sandbox, port, directory):
    """Starts an HTTP server in a sandbox, and waits until it answers there."""
    server = sandbox.commands.run(
        f"python3 -m http.server {port} --directory {directory}", background=True, timeout=0
    )
    sandbox.commands.run(
        f"until curl -sf -o /dev/null http://127.0.0.1:{port}/; do sleep 0.3; done",
        timeout=PATIENCE,
    )
    return server


def plain(text):
    """A text without its colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)
