"""Templates: built by steps, started, found again."""

import uuid

import pytest
from e2b import BuildException, Template, wait_for_port

from support import PATIENCE, port_of

NAME = f"flow-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    context = tmp_path_factory.mktemp("context")
    (context / "site" / "deep").mkdir(parents=True)
    (context / "site" / "index.html").write_text("built page")
    (context / "site" / "deep" / "data.bin").write_bytes(bytes(range(256)))
    (context / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (context / "run.sh").chmod(0o755)
    logs = []
    template = (
        Template(file_context_path=str(context))
        .from_template("base")
        .set_envs({"FLAVOUR": "vanilla ice"})
        .copy("site", "/srv/site")
        .copy("run.sh", "/usr/local/bin/run-it", user="root", mode=0o755)
        .set_workdir("/srv/work")
        .run_cmd('pwd > /tmp/where; echo "$FLAVOUR" > /tmp/flavour; whoami > /tmp/who')
        .run_cmd("touch /opt/by-root", user="root")
        .set_start_cmd("python3 -m http.server 8123 --directory /srv/site", wait_for_port(8123))
    )
    info = Template.build(template, NAME, cpu_count=1, memory_mb=512, on_build_logs=logs.append)
    return info, logs


def test_a_build_says_what_it_did(built):
    info, logs = built
    assert info.template_id and info.build_id
    assert any("http.server" in entry.message or "RUN" in entry.message for entry in logs)
    assert Template.exists(NAME)
    assert not Template.exists(f"{NAME}-not")


def test_a_sandbox_has_what_was_built(built, make):
    sandbox = make(NAME)
    done = sandbox.commands.run(
        "cat /tmp/where /tmp/flavour /tmp/who; ls /opt/by-root; run-it; "
        "sha256sum /srv/site/deep/data.bin | cut -c1-8",
        timeout=PATIENCE,
    )
    assert done.stdout == "/srv/work\nvanilla ice\nuser\n/opt/by-root\nran\n40aff2e9\n"
    assert port_of(sandbox, 8123, "/index.html") == (200, "built page"), "it was started"
    assert sandbox.get_info().memory_mb == 512


def test_a_step_that_fails_fails_the_build():
    template = Template().from_template("base").run_cmd("echo to-be-seen; exit 9")
    with pytest.raises(BuildException, match="9|to-be-seen"):
        Template.build(template, f"{NAME}-bad")


def test_a_build_in_the_background(built):
    template = Template().from_template("base").run_cmd("true")
    info = Template.build_in_background(template, f"{NAME}-late")
    from support import until

    def ended():
        status = Template.get_build_status(info)
        return status if status.status.value in ("ready", "error") else None

    assert until("the build ended", ended, 300).status.value == "ready"
