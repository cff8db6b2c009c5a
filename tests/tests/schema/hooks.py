"""What schemathesis has to know about a node: which sandboxes there are, and what every refusal must look like.

Most requests are aimed at sandboxes that exist, so that they get past the first check. What a request makes is
removed after it, so that the node does not fill up.
"""

import os
import zlib

import requests
import schemathesis

URL = os.environ["RAMET_URL"]
HEADERS = {"Authorization": f"Bearer {os.environ['RAMET_TOKEN']}"}
NAMES = ["box-0", "box-1", "box-2"]
TIME = 20

session = requests.Session()
# The node ends connections that are silent, and between two of these requests there may be a minute of others.
session.headers.update(HEADERS | {"Connection": "close"})


def restore(name):
    """A sandbox with this name, running, with a file and a checkpoint."""
    made = session.post(f"{URL}/v1/sandboxes", json={"name": name}, timeout=TIME)
    if made.status_code == 201:
        there = f"{URL}/v1/sandboxes/{name}"
        session.put(f"{there}/files", params={"path": "/file"}, data=b"0123456789", timeout=TIME)
        session.post(f"{there}/checkpoints", json={"name": "kept"}, timeout=TIME)
    else:
        session.post(f"{URL}/v1/sandboxes/{name}/resume", timeout=TIME)


@schemathesis.serializer("application/x-tar")
def archive(context, value):
    """Bytes as they come; archives that are none are what is wanted here."""
    return value if isinstance(value, bytes) else str(value).encode()


@schemathesis.hook
def before_call(context, case, kwargs):
    parameters = case.path_parameters
    if not parameters or "id" not in parameters:
        return
    chosen = zlib.crc32(repr(parameters["id"]).encode())
    if chosen % 8:
        parameters["id"] = NAMES[chosen % len(NAMES)]
        restore(parameters["id"])
    if "cid" in parameters and chosen % 3:
        parameters["cid"] = "kept"


@schemathesis.hook
def after_call(context, case, response):
    if case.method.upper() != "POST" or response.status_code not in (201, 207):
        return
    answer = response.json()
    made = [answer.get("sandbox")] + [child.get("sandbox") for child in answer.get("children", [])]
    for sandbox in made:
        if sandbox and isinstance(sandbox, dict) and sandbox["name"] not in NAMES:
            session.delete(f"{URL}/v1/sandboxes/{sandbox['id']}", timeout=TIME)


@schemathesis.check
def refusals_are_problems(ctx, response, case):
    """Every 4xx and 5xx is a problem with a code of its own, and says what was wrong."""
    if response.status_code < 400:
        return
    kind = response.headers.get("content-type", [""])
    kind = kind[0] if isinstance(kind, list) else kind
    assert kind == "application/problem+json", f"{response.status_code} is {kind!r}"
    if case.method.upper() == "HEAD":
        return
    problem = response.json()
    assert problem["status"] == response.status_code, problem
    assert problem["code"] and problem["detail"] and problem["type"] == "about:blank", problem
    assert problem["code"] != "internal", problem
