"""Python contexts: results, output, errors, charts, variables."""

from __future__ import annotations

import base64
import unittest

from tests.harness import ServerTest, has_module


class Results(ServerTest):
    """What code shows."""

    def test_the_last_expression_is_the_main_result(self) -> None:
        done = self.run_code("x = 20\nx + 1")
        self.assertEqual(done.text, "21")
        self.assertEqual(done.kinds[0], "number_of_executions")
        self.assertEqual(self.run_code("x").text, "20")
        self.assertEqual(self.run_code("'text'").text, "text")
        self.assertEqual(self.run_code("None").results, [])
        self.assertEqual(self.run_code("5;").results, [])

    def test_every_form_has_its_field(self) -> None:
        code = """
class Rich:
    def _repr_mimebundle_(self, include=None, exclude=None):
        return {
            "text/plain": "t", "text/html": "<b>", "text/markdown": "**", "image/svg+xml": "<svg/>",
            "image/png": b"png", "image/jpeg": b"jpeg", "application/pdf": b"pdf", "text/latex": "$",
            "application/json": {"a": [1]}, "application/javascript": "f()", "application/x-own": "own",
        }
Rich()
"""
        (result,) = self.run_code(code).results
        expected = {
            "text": "t", "html": "<b>", "markdown": "**", "svg": "<svg/>", "latex": "$",
            "json": {"a": [1]}, "javascript": "f()", "extra": {"application/x-own": "own"},
        }
        self.assertEqual({name: result[name] for name in expected}, expected)
        for name in ("png", "jpeg", "pdf"):
            self.assertEqual(base64.b64decode(result[name]), name.encode())

    def test_what_is_displayed_stays_in_order(self) -> None:
        code = """
import os, subprocess, sys
print("one")
display({"two": 2})
subprocess.run(["sh", "-c", "echo three"])
print("four", file=sys.stderr)
os.write(1, b"five\\n")
display("six")
os.system("echo seven >&2")
8
"""
        done = self.run_code(code)
        said = [
            (event["type"], (event.get("text") or "").strip())
            for event in done.events
            if event["type"] in ("stdout", "stderr", "result")
        ]
        self.assertEqual(said, [
            ("stdout", "one"), ("result", "{'two': 2}"), ("stdout", "three"), ("stderr", "four"),
            ("stdout", "five"), ("result", "six"), ("stderr", "seven"), ("result", "8"),
        ])
        stamps = [event["timestamp"] for event in done.events if "timestamp" in event]
        self.assertEqual(stamps, sorted(stamps))
        self.assertGreater(stamps[0], 10**18)

    def test_output_comes_while_code_runs(self) -> None:
        running = self.begin("import time\nprint('now')\ntime.sleep(30)")
        self.assertEqual(running.wait_for("stdout")["text"], "now\n")

    def test_much_output_comes_whole_and_in_pieces(self) -> None:
        done = self.run_code("print('a' * 300_000)\nimport os\nos.system('yes | head -c 500000')")
        self.assertEqual(len(done.stdout), 300_001 + 500_000)
        self.assertLessEqual(max(len(event.get("text", "")) for event in done.events), 32 * 1024)

    def test_code_that_keeps_the_lock_of_the_interpreter_can_write(self) -> None:
        done = self.run_code("import ctypes\nctypes.PyDLL(None).write(1, b'x' * 150_000, 150_000)")
        self.assertEqual((done.text, len(done.stdout)), ("150000", 150_000))

    def test_magics_shell_and_await(self) -> None:
        self.assertEqual(self.run_code("!echo from the shell").stdout.strip(), "from the shell")
        self.assertIn("per loop", self.run_code("%timeit -n1 -r1 1").stdout)
        self.assertEqual(self.run_code("import asyncio\nawait asyncio.sleep(0.01, 7)").text, "7")

    def test_a_forked_child_can_print(self) -> None:
        code = "import os\npid = os.fork()\nif not pid:\n    print('child'); os._exit(0)\nos.waitpid(pid, 0)\nprint('parent')"
        self.assertEqual(self.run_code(code).stdout, "child\nparent\n")

    def test_user_modules_are_found_and_ours_are_not(self) -> None:
        done = self.run_code("import contexts")
        self.assertEqual((done.error or {}).get("name"), "ModuleNotFoundError")

    @unittest.skipUnless(has_module("pandas"), "needs pandas")
    def test_a_table_has_html_and_data(self) -> None:
        code = "import pandas as pd\npd.DataFrame({'a': [1, 2], 'b': [float('nan'), pd.Timestamp('2020-01-02')]})"
        (result,) = self.run_code(code).results
        self.assertIn("<table", result["html"])
        self.assertEqual(result["data"], {"a": [1, 2], "b": [None, "2020-01-02T00:00:00"]})


class Errors(ServerTest):
    """What goes wrong."""

    def test_an_error_has_name_value_and_traceback(self) -> None:
        done = self.run_code("def f():\n    return 1 / 0\nprint('before')\nf()")
        assert done.error
        self.assertEqual((done.error["name"], done.error["value"]), ("ZeroDivisionError", "division by zero"))
        self.assertIn("Traceback", done.error["traceback"])
        self.assertEqual(done.stdout, "before\n")

    def test_kinds_of_errors(self) -> None:
        cases = {
            "def f(:": "SyntaxError",
            "%nosuchmagic": "UsageError",
            "input()": "StdinNotImplementedError",
            "import sys; sys.exit(3)": "SystemExit",
            "exit()": "SystemExit",
            "class E(Exception):\n    def __str__(self): raise ValueError\nraise E": "E",
        }
        for code, name in cases.items():
            with self.subTest(code):
                error = self.run_code(code).error
                self.assertEqual((error or {}).get("name"), name)
        self.assertEqual(self.run_code("1").text, "1")

    def test_a_context_that_dies_says_so_and_is_started_anew(self) -> None:
        id = self.context()
        done = self.run_code("x = 1\nprint('last words', flush=True)\nimport os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", context_id=id)
        self.assertEqual((done.error or {}).get("name"), "ContextDied")
        self.assertEqual(done.stdout, "last words\n")
        self.assertEqual((self.run_code("x", context_id=id).error or {}).get("name"), "NameError")

    def test_signal_48_is_left_alone(self) -> None:
        done = self.run_code("import signal\nsignal.getsignal(48)")
        self.assertIn("Handlers.SIG_DFL", done.text or "")


@unittest.skipUnless(has_module("matplotlib"), "needs matplotlib")
class Charts(ServerTest):
    """Figures as pictures and as numbers."""

    def chart(self, code: str) -> dict:
        """The chart of the only figure of some code."""
        done = self.run_code("import matplotlib.pyplot as plt\n" + code)
        self.assertIsNone(done.error)
        (result,) = [result for result in done.results if "png" in result]
        self.assertTrue(base64.b64decode(result["png"]).startswith(b"\x89PNG"))
        return result["chart"]

    def test_lines(self) -> None:
        code = "plt.plot([0, 1], [2.5, 3], label='up')\nplt.title('T')\nplt.xlabel('time (s)')\nplt.show()"
        chart = self.chart(code)
        self.assertEqual((chart["type"], chart["title"]), ("line", "T"))
        self.assertEqual((chart["x_label"], chart["x_unit"], chart["y_label"]), ("time (s)", "s", None))
        self.assertEqual(chart["elements"], [{"label": "up", "points": [[0.0, 2.5], [1.0, 3.0]]}])
        self.assertEqual((chart["x_scale"], len(chart["x_ticks"])), ("linear", len(chart["x_tick_labels"])))

    def test_scatters_with_dates_and_categories(self) -> None:
        code = "import datetime\nplt.scatter([datetime.datetime(2020, 1, 2)], ['cat']);"
        chart = self.chart(code)
        self.assertEqual((chart["type"], chart["x_scale"], chart["y_scale"]), ("scatter", "datetime", "categorical"))
        self.assertEqual(chart["elements"][0]["points"], [["2020-01-02T00:00:00+00:00", "cat"]])

    def test_bars(self) -> None:
        upright = self.chart("plt.bar(['a', 'b'], [1, 2], label='g');")
        expected = [{"label": "a", "group": "g", "value": 1.0}, {"label": "b", "group": "g", "value": 2.0}]
        self.assertEqual((upright["type"], upright["elements"]), ("bar", expected))
        self.assertEqual(self.chart("plt.barh(['a', 'b'], [1, 2], label='g');")["elements"], expected)

    def test_pies(self) -> None:
        chart = self.chart("plt.pie([90, 10], labels=['x', 'y']);")
        expected = [{"label": "x", "angle": 324, "radius": 1}, {"label": "y", "angle": 36, "radius": 1}]
        self.assertEqual((chart["type"], chart["elements"]), ("pie", expected))

    def test_boxes(self) -> None:
        chart = self.chart("plt.boxplot([[1, 2, 3, 4, 100]]);")
        box = chart["elements"][0]
        self.assertEqual(chart["type"], "box_and_whisker")
        self.assertEqual([box[k] for k in ("min", "median", "max", "outliers")], [1.0, 3.0, 4.0, [100.0]])

    def test_several_axes(self) -> None:
        chart = self.chart("f, (a, b) = plt.subplots(1, 2)\na.plot([1])\nb.bar(['x'], [1])\nf.suptitle('S');")
        self.assertEqual((chart["type"], chart["title"]), ("superchart", "S"))
        self.assertEqual([part["type"] for part in chart["elements"]], ["line", "bar"])

    def test_figures_are_closed_and_shown_in_order(self) -> None:
        done = self.run_code("plt.plot([1])\nplt.show()\nprint('between')\nplt.plot([2]);")
        self.assertEqual([kind for kind in done.kinds if kind in ("result", "stdout")], ["result", "stdout", "result"])
        self.assertEqual(self.run_code("plt.get_fignums()").text, "[]")


class Variables(ServerTest):
    """Listing what code has made."""

    def test_names_types_and_values(self) -> None:
        id = self.context()
        code = """
import json, time
number, text, _private = 5, "x" * 1000, 1
deep = {"a": [1, (2,)], "b": {3}}
deep["self"] = deep
def work(): pass
class Own:
    def __repr__(self): time.sleep(1000)
own, many = Own(), [Own()] * 3
"""
        self.assertIsNone(self.run_code(code, context_id=id).error)
        status, found = self.call("GET", f"/contexts/{id}/variables")
        self.assertEqual(status, 200)
        by_name = {variable["name"]: variable for variable in found["variables"]}
        expected = {"json", "time", "number", "text", "deep", "work", "Own", "own", "many"}
        self.assertEqual(set(by_name), expected)
        self.assertEqual(by_name["number"], {"name": "number", "type": "int", "kind": "value", "value": "5"})
        self.assertEqual({by_name[n]["kind"] for n in ("json", "time")}, {"module"})
        self.assertEqual((by_name["work"]["kind"], by_name["Own"]["kind"]), ("function", "class"))
        self.assertEqual((by_name["own"]["type"], by_name["own"]["value"]), ("Own", "<Own>"))
        self.assertEqual(by_name["many"]["value"], "[<Own>, <Own>, <Own>]")
        self.assertEqual(len(by_name["text"]["value"]), 200)
        self.assertTrue(by_name["deep"]["value"].startswith("{'a': [1, (2,)], 'b': {3}"))

    def test_listing_while_code_runs(self) -> None:
        id = self.context()
        running = self.begin("a = 1\nprint('go')\nwhile True: pass", context_id=id)
        running.wait_for("stdout")
        _, found = self.call("GET", f"/contexts/{id}/variables")
        self.assertEqual([variable["name"] for variable in found["variables"]], ["a"])


if __name__ == "__main__":
    unittest.main()
