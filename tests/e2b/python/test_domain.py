"""Names instead of one address: every sandbox and port has a host name, over TLS."""

import urllib.request

import pytest
from e2b import Sandbox

from conftest import Maker
from support import DOMAIN, PATIENCE, answer_of, domain_mode, needs_domain, serve_directory

pytestmark = [needs_domain, pytest.mark.domain]


@pytest.fixture(scope="module")
def named():
    """A sandbox that is found by its name alone."""
    with domain_mode():
        maker = Maker(Sandbox)
        yield maker()
        maker.clear()


def test_hosts_are_named(named):
    assert named.get_host(3000) == f"3000-{named.sandbox_id}.{DOMAIN}"


def test_commands_and_files(named):
    done = named.commands.run("echo over TLS", timeout=PATIENCE)
    assert done.stdout == "over TLS\n"
    data = bytes(range(256)) * 4096
    named.files.write("data.bin", data)
    assert bytes(named.files.read("data.bin", format="bytes")) == data


def test_a_port_of_a_sandbox(named):
    named.files.write("site/page.html", "by name")
    serve_directory(named, 3000, "/home/user/site")
    url = f"https://{named.get_host(3000)}/page.html"
    assert answer_of(urllib.request.Request(url)) == (200, "by name")


def test_a_closed_port_says_so(named):
    url = f"https://{named.get_host(3999)}/"
    status, text = answer_of(urllib.request.Request(url))
    assert status == 502
    assert "port is not open" in text


def test_nobody_has_that_name():
    url = f"https://3000-{'0' * 16}.{DOMAIN}/"
    status, text = answer_of(urllib.request.Request(url))
    assert status == 502
    assert "was not found" in text


def test_signed_urls_name_their_sandbox(named):
    named.files.write("signed.txt", "signed")
    url = named.download_url("signed.txt", use_signature_expiration=600)
    assert named.sandbox_id in url
    assert answer_of(urllib.request.Request(url)) == (200, "signed")


def test_a_fork_has_a_name_of_its_own(named):
    named.files.write("site/page.html", "by name")
    (child,) = named.fork(timeout=600)
    try:
        assert child.get_host(3000) != named.get_host(3000)
        child.files.write("site/page.html", "of the child")
        url = f"https://{child.get_host(3000)}/page.html"
        assert answer_of(urllib.request.Request(url)) == (200, "of the child")
    finally:
        child.kill()
