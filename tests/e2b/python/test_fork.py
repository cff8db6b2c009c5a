"""Fork: eight copies of a running machine, its interpreter and its server."""

import pytest
from e2b import NotFoundException, Sandbox
from e2b.exceptions import InvalidArgumentException

from support import PATIENCE, port_of, serve_directory

COUNT = 8


def test_eight_children_have_everything(make_code):
    source = make_code()
    context = source.create_code_context()
    source.run_code("x = list(range(42))", context=context)
    source.files.write("site/index.html", "from the source")
    serve_directory(source, 8000, "/home/user/site")
    children = source.fork(count=COUNT, timeout=600)
    assert len(children) == COUNT
    for child in children:
        assert isinstance(child, type(source)), child
        make_code.keep(child)
    assert len({source.sandbox_id, *(child.sandbox_id for child in children)}) == COUNT + 1

    for number, child in enumerate(children):
        found = child.run_code(f"x.append({number}); len(x), x[-1]", context=context)
        assert found.text == f"(43, {number})", found.error
        assert port_of(child, 8000, "/index.html") == (200, "from the source")
        child.files.write("site/index.html", f"from child {number}")
    for number, child in enumerate(children):
        assert port_of(child, 8000, "/index.html") == (200, f"from child {number}")
        assert child.run_code("x[-1]", context=context).text == str(number)
    assert port_of(source, 8000, "/index.html") == (200, "from the source")
    assert source.run_code("len(x)", context=context).text == "42"

    children[0].kill()
    assert not children[0].is_running()
    assert children[1].is_running() and source.is_running()


def test_a_child_has_a_token_and_children_of_its_own(make):
    source = make()
    source.files.write("generation", "0")
    (child,) = Sandbox.fork(source.sandbox_id, timeout=600)
    make.keep(child)
    child.files.write("generation", "1")
    (grandchild,) = child.fork(timeout=600)
    make.keep(grandchild)
    assert grandchild.files.read("generation") == "1"
    assert source.files.read("generation") == "0"
    done = grandchild.commands.run("hostname; cat generation", timeout=PATIENCE)
    assert done.stdout.endswith("1")
    url = source.download_url("generation")
    signature = url.split("signature=")[1]
    assert signature not in child.download_url("generation")


def test_what_cannot_be_forked(make):
    source = make()
    source.kill()
    with pytest.raises(NotFoundException):
        source.fork()
    with pytest.raises(InvalidArgumentException):
        source.fork(count=0)
