"""Code: every kind of result, output while it runs, errors, environment."""

import base64

import e2b_code_interpreter as interpreter
import pytest
from e2b_code_interpreter import charts

from support import PATIENCE, plain

PNG = b"\x89PNG\r\n\x1a\n"
# A class for each kind of result, as any library could have one.
SHOWN = """
class Shown:
    def __init__(self, kind, value):
        self.kind, self.value = kind, value
    def __getattr__(self, name):
        if name == f'_repr_{self.kind}_':
            return lambda *a, **k: self.value
        raise AttributeError(name)
    def __repr__(self):
        return 'Shown'
"""


def run(code, text, **options):
    options.setdefault("timeout", 300)
    done = code.run_code(text, **options)
    assert done.error is None, done.error.traceback
    return done


def main(done):
    (result,) = [one for one in done.results if one.is_main_result]
    return result


def test_the_last_value_is_the_result(code):
    done = run(code, "x = 20\nx + 1")
    assert done.text == "21"
    assert main(done).text == "21"
    assert run(code, "x").text == "20", "variables stay"
    assert run(code, "y = 1").results == []


def test_output_and_its_streams(code):
    done = run(code, "import sys\nprint('out')\nprint('err', file=sys.stderr)")
    assert "".join(done.logs.stdout) == "out\n"
    assert "".join(done.logs.stderr) == "err\n"


def test_output_comes_while_it_runs(code):
    """The code goes on only after its first line was seen here."""
    seen, results, errors = [], [], []

    def on_stdout(message):
        seen.append(message.line)
        assert message.timestamp > 1_600_000_000
        if "one" in message.line:
            code.files.write("/tmp/code-go", "")

    done = run(
        code,
        "import os, sys, time\n"
        "print('one', flush=True)\n"
        "while not os.path.exists('/tmp/code-go'): time.sleep(0.1)\n"
        "print('two'); print('bad', file=sys.stderr)\n"
        "6 * 7",
        on_stdout=on_stdout,
        on_stderr=lambda message: errors.append(message.line),
        on_result=results.append,
    )
    assert "".join(seen) == "one\ntwo\n"
    assert "".join(errors) == "bad\n"
    assert [one.text for one in results] == [done.text] == ["42"]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("html", "<b>bold</b>"),
        ("markdown", "# Title"),
        ("svg", "<svg xmlns='http://www.w3.org/2000/svg'></svg>"),
        ("latex", "$x^2$"),
        ("javascript", "console.log(1)"),
    ],
)
def test_text_results(code, kind, value):
    run(code, SHOWN)
    result = main(run(code, f"Shown({kind!r}, {value!r})"))
    assert getattr(result, kind) == value
    assert kind in result.formats()
    assert result.text == "Shown"


@pytest.mark.parametrize("kind", ["png", "jpeg", "pdf"])
def test_binary_results(code, kind):
    value = bytes(range(256))
    run(code, SHOWN)
    result = main(run(code, f"Shown({kind!r}, {value!r})"))
    assert base64.b64decode(getattr(result, kind)) == value


def test_json_results(code):
    run(code, SHOWN)
    value = {"a": [1, 2.5, None], "b": {"c": "ü"}}
    assert main(run(code, f"Shown('json', {value!r})")).json == value


def test_what_is_displayed_is_a_result_too(code):
    done = run(code, "from IPython.display import display, HTML\ndisplay(HTML('<i>1</i>'))\n'main'")
    shown = [one for one in done.results if not one.is_main_result]
    assert [one.html for one in shown] == ["<i>1</i>"]
    assert done.text == "main"


def test_a_table_of_pandas(code):
    result = main(run(code, "import pandas\npandas.DataFrame({'a': [1, 2], 'b': ['x', 'y']})"))
    assert "<table" in result.html
    assert result.data == {"a": [1, 2], "b": ["x", "y"]}
    assert "a" in result.text and "x" in result.text


def figure(code, lines):
    """The one figure that some lines draw."""
    done = run(code, f"import matplotlib.pyplot as plt\nplt.close('all')\n{lines}\nplt.show()", timeout=600)
    (result,) = [one for one in done.results if one.png]
    assert base64.b64decode(result.png).startswith(PNG)
    return result.chart


def test_a_line_chart(code):
    chart = figure(
        code,
        "plt.plot([1, 2, 3], [4, 5, 6], label='growth')\nplt.xlabel('Time (s)')\nplt.ylabel('Size')\nplt.title('T')",
    )
    assert isinstance(chart, charts.LineChart)
    assert (chart.title, chart.x_label, chart.y_label) == ("T", "Time (s)", "Size")
    assert chart.x_unit == "s"
    (line,) = chart.elements
    assert line.label == "growth"
    assert [tuple(point) for point in line.points] == [(1, 4), (2, 5), (3, 6)]


def test_a_scatter_chart(code):
    chart = figure(code, "plt.scatter([1, 2], [3, 4], label='dots')")
    assert isinstance(chart, charts.ScatterChart)
    assert [tuple(point) for point in chart.elements[0].points] == [(1, 3), (2, 4)]


def test_a_bar_chart(code):
    chart = figure(code, "plt.bar(['a', 'b'], [3, 7])\nplt.title('Bars')")
    assert isinstance(chart, charts.BarChart)
    assert [(bar.label, float(bar.value)) for bar in chart.elements] == [("a", 3), ("b", 7)]


def test_a_pie_chart(code):
    chart = figure(code, "plt.pie([1, 3], labels=['little', 'much'])")
    assert isinstance(chart, charts.PieChart)
    assert [slice.label for slice in chart.elements] == ["little", "much"]
    assert round(sum(slice.angle for slice in chart.elements)) == 360


def test_a_box_chart(code):
    chart = figure(code, "plt.boxplot([[1, 2, 3, 4, 5]], tick_labels=['all'])")
    assert isinstance(chart, charts.BoxAndWhiskerChart)
    assert (chart.elements[0].min, chart.elements[0].median, chart.elements[0].max) == (1, 3, 5)


def test_several_charts_in_one(code):
    chart = figure(
        code,
        "f, (a, b) = plt.subplots(1, 2)\na.plot([1, 2], [1, 2])\nb.bar(['x'], [1])",
    )
    assert isinstance(chart, charts.SuperChart)
    assert {type(part) for part in chart.elements} == {charts.LineChart, charts.BarChart}


def test_errors_say_where_and_what(code):
    seen = []
    done = code.run_code("print('before')\n1 / 0", on_error=seen.append, timeout=PATIENCE)
    assert done.error.name == "ZeroDivisionError"
    assert done.error.value == "division by zero"
    assert "1 / 0" in plain(done.error.traceback)
    assert [one.name for one in seen] == ["ZeroDivisionError"]
    assert "".join(done.logs.stdout) == "before\n"
    assert code.run_code("this is no python", timeout=PATIENCE).error.name == "SyntaxError"
    assert run(code, "'alive'").text == "alive"


def test_executions_are_counted(code):
    first = run(code, "1").execution_count
    assert run(code, "1").execution_count == first + 1


def test_magic_lines(code):
    assert "".join(run(code, "!echo from the shell").logs.stdout).strip() == "from the shell"
    assert "".join(run(code, "%pwd").results[0].text).strip("'") == "/home/user"


def test_environment_of_one_execution(make_code):
    sandbox = make_code(envs={"OF_ALL": "all", "BOTH": "sandbox"})
    ask = "import os\n[os.environ.get(name) for name in ('OF_ALL', 'BOTH', 'OF_ONE')]"
    told = run(sandbox, ask, envs={"BOTH": "one", "OF_ONE": "one"})
    assert told.text == "['all', 'one', 'one']"
    assert run(sandbox, ask).text == "['all', 'sandbox', None]"
    later = run(sandbox, "import subprocess\nsubprocess.getoutput('echo $OF_ALL')")
    assert later.text == "all"


def test_memory_survives_a_pause(make_code):
    sandbox = make_code()
    run(sandbox, "kept = {'a': 1}")
    sandbox.pause()
    again = interpreter.Sandbox.connect(sandbox.sandbox_id, timeout=600)
    assert run(again, "kept").text == "{'a': 1}"


def test_files_and_code_see_each_other(code):
    code.files.write("shared.csv", "a,b\n1,2\n")
    assert run(code, "open('/home/user/shared.csv').read()").text == "a,b\\n1,2\\n"
    run(code, "_ = open('made.txt', 'w').write('made by code')")
    assert code.files.read("/home/user/made.txt") == "made by code"


def test_code_that_takes_too_long_is_interrupted(code):
    with pytest.raises(Exception, match="(?i)time"):
        code.run_code("import time\ninterrupted = True\nwhile True: time.sleep(0.1)", timeout=5)
    assert run(code, "interrupted").text == "True", "the session goes on"
