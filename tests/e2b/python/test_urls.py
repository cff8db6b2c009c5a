"""Signed URLs: whoever has one reads or writes one file, for as long as it holds."""

import time
import urllib.parse
import urllib.request

import pytest

from support import answer_of

FORM = "ramet-test-boundary"


def get(url):
    return answer_of(urllib.request.Request(url))


def post(url, name, data):
    """As a browser sends a form."""
    head = f'--{FORM}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
    body = f"{head}Content-Type: application/octet-stream\r\n\r\n".encode()
    body += data + f"\r\n--{FORM}--\r\n".encode()
    kind = {"Content-Type": f"multipart/form-data; boundary={FORM}"}
    return answer_of(urllib.request.Request(url, data=body, headers=kind, method="POST"))


def changed(url, **values):
    parts = urllib.parse.urlsplit(url)
    query = dict(urllib.parse.parse_qsl(parts.query)) | values
    return parts._replace(query=urllib.parse.urlencode(query)).geturl()


@pytest.mark.parametrize("seconds", [None, 3600], ids=["for good", "for an hour"])
def test_download(box, seconds):
    box.files.write("down ü.txt", "downloaded")
    for user in (None, "user"):
        url = box.download_url("down ü.txt", user=user, use_signature_expiration=seconds)
        assert get(url) == (200, "downloaded")


@pytest.mark.parametrize("seconds", [None, 3600], ids=["for good", "for an hour"])
def test_upload(box, seconds):
    url = box.upload_url("up.txt", user="user", use_signature_expiration=seconds)
    status, _ = post(url, "up.txt", b"uploaded\n")
    assert status == 200
    assert box.files.read("up.txt") == "uploaded\n"
    box.files.remove("up.txt")


def test_an_expired_one_is_refused(box):
    box.files.write("old.txt", "old")
    status, text = get(box.download_url("old.txt", use_signature_expiration=-60))
    assert status == 401
    assert "expired" in text
    url = box.upload_url("late.txt", use_signature_expiration=-60)
    assert post(url, "late.txt", b"late")[0] == 401
    assert not box.files.exists("late.txt")


def test_a_changed_one_is_refused(box):
    box.files.write("one.txt", "one")
    box.files.write("two.txt", "two")
    url = box.download_url("one.txt", use_signature_expiration=600)
    later = str(int(time.time()) + 999_999)
    for wrong in (
        changed(url, path="two.txt"),
        changed(url, signature="v1_" + "A" * 43),
        changed(url, signature_expiration=later),
        changed(url, username="root"),
    ):
        status, text = get(wrong)
        assert status in (400, 401, 403, 404)
        assert "one" != text and "two" != text
    status, _ = post(url, "one.txt", b"written")
    assert status in (400, 401, 403, 404)
    assert box.files.read("one.txt") == "one"
