"""Contexts of code: apart from each other, restarted, removed; other languages."""

import pytest

from support import PATIENCE


def text(code, line, **options):
    """What the last line is; a text is given without its quotes."""
    done = code.run_code(line, timeout=PATIENCE, **options)
    assert done.error is None, done.error.traceback
    return done.text


def test_a_life_of_a_context(code):
    context = code.create_code_context(cwd="/tmp")
    assert (context.language, context.cwd) == ("python", "/tmp")
    assert context.id in [one.id for one in code.list_code_contexts()]
    text(code, "x = 'own'", context=context)
    text(code, "x = 'usual'")
    assert text(code, "x", context=context) == "own"
    assert text(code, "x") == "usual"
    assert text(code, "import os; os.getcwd()", context=context) == "/tmp"

    code.restart_code_context(context)
    gone = code.run_code("x", context=context, timeout=PATIENCE)
    assert gone.error.name == "NameError"
    assert text(code, "x") == "usual"

    code.remove_code_context(context)
    assert context.id not in [one.id for one in code.list_code_contexts()]
    with pytest.raises(Exception, match="(?i)not found|context"):
        code.run_code("1", context=context, timeout=PATIENCE)


@pytest.mark.parametrize(
    ("language", "first", "second", "shown"),
    [
        ("bash", "x=6", "echo $((x * 7))", "42"),
        ("javascript", "let x = 6", "console.log(x * 7)", "42"),
        ("typescript", "let x: number = 6", "console.log(x * 7)", "42"),
    ],
)
def test_other_languages(code, language, first, second, shown):
    try:
        context = code.create_code_context(language=language)
    except Exception as refusal:
        assert language in str(refusal), "a refusal names what it refuses"
        pytest.skip(f"no {language} here: {refusal}")
    assert context.language == language
    text(code, first, context=context)
    done = code.run_code(second, context=context, timeout=PATIENCE)
    assert shown in "".join(done.logs.stdout), done.error
    directly = code.run_code(second.replace("x", "1"), language=language, timeout=PATIENCE)
    assert "7" in "".join(directly.logs.stdout), directly.error


def test_an_unknown_language_is_named(code):
    with pytest.raises(Exception, match="klingon"):
        code.create_code_context(language="klingon")


def test_failures_of_other_languages(code):
    try:
        context = code.create_code_context(language="bash")
    except Exception as refusal:
        pytest.skip(f"no bash here: {refusal}")
    code.run_code("cd /tmp; y=1", context=context, timeout=PATIENCE)
    done = code.run_code("pwd; echo bad >&2", context=context, timeout=PATIENCE)
    assert "".join(done.logs.stdout).strip() == "/tmp"
