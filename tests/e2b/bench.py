"""What E2B's Python SDK feels on a node, each figure beside the same thing by the node's own API.

Usage: bench.py [--samples N] [--large MIB] [--json FILE]

Wants the SDK's variables for a single port (E2B_API_URL, E2B_SANDBOX_URL, E2B_API_KEY). The API key is the
node's token in another form, so nothing else is needed. Samples of both sides alternate, so that whatever else
the machine does is felt by both.
"""

import argparse
import concurrent.futures
import json
import math
import os
import time
import urllib.request

from e2b_code_interpreter import Sandbox

CHILDREN = 8
LABEL = "e2b-bench"
PATIENCE = 600


class Own:
    """The node's own API."""

    def __init__(self):
        self.url = os.environ["E2B_API_URL"].rstrip("/")
        self.token = os.environ["E2B_API_KEY"].replace("e2b_", "ramet_", 1)

    def ask(self, method, path, body=None, kind="application/json"):
        """The answer to one request, as JSON if it is."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.token}"}
        if data is not None:
            headers["Content-Type"] = kind
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            text = response.read()
            json_type = response.headers.get("Content-Type", "").startswith("application/json")
            return json.loads(text) if text and json_type else text

    def create(self, **wishes):
        return self.ask("POST", "/v1/sandboxes", {"labels": {LABEL: "1"}, **wishes})["id"]

    def run(self, sandbox):
        answer = self.ask("POST", f"/v1/sandboxes/{sandbox}/exec", {"command": "echo 1"})
        assert answer["stdout"] == "1\n", answer

    def fork(self, sandbox):
        children = self.ask("POST", f"/v1/sandboxes/{sandbox}/fork", {"count": CHILDREN})["children"]
        return [child["sandbox"]["id"] for child in children]

    def upload(self, sandbox, data):
        path = f"/v1/sandboxes/{sandbox}/files?path=/tmp/large"
        self.ask("PUT", path, data, "application/octet-stream")

    def code(self, sandbox):
        answer = self.ask("POST", f"/v1/sandboxes/{sandbox}/code", {"code": "1+1"}).decode()
        assert '"2"' in answer, answer

    def kill(self, sandbox):
        self.ask("DELETE", f"/v1/sandboxes/{sandbox}")


def timed(work):
    """Milliseconds, and what came of it."""
    began = time.perf_counter()
    result = work()
    return (time.perf_counter() - began) * 1000, result


def together(work, each):
    """Does it for each at the same time."""
    with concurrent.futures.ThreadPoolExecutor(len(each)) as pool:
        list(pool.map(work, each))


def sdk_run(sandbox):
    assert sandbox.commands.run("echo 1", timeout=PATIENCE).stdout == "1\n"


def sdk_create():
    sandbox = Sandbox.create("base", timeout=PATIENCE, metadata={LABEL: "1"})
    sdk_run(sandbox)
    return sandbox


def own_create(own):
    sandbox = own.create()
    own.run(sandbox)
    return sandbox


def sdk_fork(sandbox):
    children = sandbox.fork(count=CHILDREN, timeout=PATIENCE)
    together(sdk_run, children)
    return children


def own_fork(own, sandbox):
    children = own.fork(sandbox)
    together(own.run, children)
    return children


def creating(own, samples):
    """create to the first command answered"""
    sdk, plain = [], []
    for _ in range(samples):
        spent, sandbox = timed(sdk_create)
        sdk.append(spent)
        sandbox.kill()
        spent, sandbox = timed(lambda: own_create(own))
        plain.append(spent)
        own.kill(sandbox)
    return sdk, plain


def forking(own, samples):
    """fork(8) to the first command answered in all eight"""
    sdk, plain = [], []
    source, other = sdk_create(), own_create(own)
    for _ in range(samples):
        spent, children = timed(lambda: sdk_fork(source))
        sdk.append(spent)
        for child in children:
            child.kill()
        spent, children = timed(lambda: own_fork(own, other))
        plain.append(spent)
        for child in children:
            own.kill(child)
    source.kill()
    own.kill(other)
    return sdk, plain


def coding(own, samples):
    """run_code("1+1") and its answer"""
    sdk, plain = [], []
    sandbox = Sandbox.create(timeout=PATIENCE, metadata={LABEL: "1"})
    inner = f"sbx-{sandbox.sandbox_id}"
    sandbox.run_code("1+1", timeout=PATIENCE)
    for _ in range(samples):
        spent, done = timed(lambda: sandbox.run_code("1+1", timeout=PATIENCE))
        assert done.text == "2", done
        sdk.append(spent)
        spent, _ = timed(lambda: own.code(inner))
        plain.append(spent)
    sandbox.kill()
    return sdk, plain


def uploading(own, samples, mib):
    """upload of a large file"""
    sdk, plain = [], []
    data = os.urandom(1 << 20) * mib
    sandbox, other = sdk_create(), own_create(own)
    for _ in range(samples):
        spent, _ = timed(lambda: sandbox.files.write("/tmp/large", data, request_timeout=PATIENCE))
        sdk.append(spent)
        spent, _ = timed(lambda: own.upload(other, data))
        plain.append(spent)
    sandbox.kill()
    own.kill(other)
    return sdk, plain


def percentile(samples, percent):
    """The sample that so many percent are not above."""
    return sorted(samples)[max(1, math.ceil(len(samples) * percent / 100)) - 1]


def row(name, sdk, plain, **params):
    """A figure; the floor is the node's own API."""
    floor = percentile(plain, 50) if plain else None
    p50 = percentile(sdk, 50)
    return {
        "name": name,
        "params": params,
        "unit": "ms",
        "p50": round(p50, 2),
        "p95": round(percentile(sdk, 95), 2),
        "floor_p50": floor and round(floor, 2),
        "floor_p95": round(percentile(plain, 95), 2) if plain else None,
        "ratio": floor and round(p50 / floor, 2),
    }


def measure(samples, mib):
    own = Own()
    few = max(2, samples // 5)
    return [
        row("e2b_create", *creating(own, samples)),
        row("e2b_fork", *forking(own, few), children=CHILDREN),
        row("e2b_run_code", *coding(own, samples)),
        row("e2b_upload", *uploading(own, few, mib), mib=mib),
    ]


def table(rows):
    """For people."""
    head = ("figure [ms]", "sdk p50", "sdk p95", "own p50", "own p95", "ratio")
    keys = ("name", "p50", "p95", "floor_p50", "floor_p95", "ratio")
    lines = [head] + [tuple("" if one[key] is None else str(one[key]) for key in keys) for one in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--large", type=int, default=100, metavar="MIB")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to this file")
    arguments = parser.parse_args()
    rows = measure(arguments.samples, arguments.large)
    print(table(rows))
    if arguments.json:
        mode = Own().ask("GET", "/v1/node")["host_mode"]
        with open(arguments.json, "w") as file:
            json.dump({"mode": mode, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
