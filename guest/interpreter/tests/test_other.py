"""Contexts for JavaScript and bash."""

from __future__ import annotations

import shutil
import unittest

from tests.harness import ServerTest


@unittest.skipUnless(shutil.which("node"), "needs Node")
class JavaScript(ServerTest):
    """One Node process."""

    def js(self, code: str):
        """Run code in the default context."""
        return self.run_code(code, language="js")

    def test_declarations_stay_and_may_come_again(self) -> None:
        self.assertEqual(self.js("const a = 1; let b = 2; class C { m() { return a + b } }; new C().m()").text, "3")
        self.assertEqual(self.js("new C().m()").text, "3")
        self.assertEqual(self.js("const a = 5; function f() { return a } f()").text, "5")

    def test_results_and_output(self) -> None:
        done = self.js("console.log('one', {a: 1}); console.error('two'); [1, 'x']")
        self.assertEqual((done.stdout, done.stderr, done.text), ("one { a: 1 }\n", "two\n", "[ 1, 'x' ]"))
        self.assertEqual(self.js("undefined").results, [])
        self.assertEqual(self.js("10n ** 3n").text, "1000n")
        self.assertEqual(self.js("-0").text, "-0")
        out = self.js("require('child_process').execSync('echo child', {stdio: 'inherit'}); process.stdout.write('x')")
        self.assertEqual(out.stdout.split(), ["child", "x"])

    def test_await_and_imports(self) -> None:
        self.assertEqual(self.js("await new Promise(r => setTimeout(() => r(4), 10))").text, "4")
        self.assertEqual(self.js("Promise.resolve(6)").text, "6")
        code = "import os, { EOL as end } from 'node:os'\nimport * as path from 'path';\n[typeof os.cpus, end, path.sep]"
        self.assertEqual(self.js(code).text, "[ 'function', '\\n', '/' ]")
        self.assertEqual(self.js("(await import('fs')).constants.R_OK + ' import(\"x\")'").text, '4 import("x")')

    def test_errors(self) -> None:
        cases = {"null.x": "TypeError", "a +;": "SyntaxError", "throw new RangeError('r')": "RangeError",
                 "throw 'text'": "Error", "await Promise.reject(new TypeError('t'))": "TypeError",
                 "setTimeout(() => { throw new EvalError('late') }, 1); await new Promise(() => {})": "EvalError"}
        for code, name in cases.items():
            with self.subTest(code):
                error = self.js(code).error
                self.assertEqual((error or {}).get("name"), name)
                self.assertNotIn("node_context", error["traceback"])
        self.assertEqual(self.run_code("process.exit(3)", language="javascript").error["name"], "ContextDied")
        self.assertEqual(self.js("1").text, "1")

    def test_typescript_runs_or_says_what_is_missing(self) -> None:
        status, answer = self.call("POST", "/contexts", {"language": "ts"})
        if status == 200:
            done = self.run_code("interface A { x: number }\nconst a: A = { x: 3 };\na.x", context_id=answer["id"])
            self.assertEqual(done.text, "3")
        else:
            self.assertEqual(status, 501)
            self.assertIn("typescript", answer)


class Bash(ServerTest):
    """One shell."""

    def sh(self, code: str):
        """Run code in the default context."""
        return self.run_code(code, language="bash")

    def test_state_stays(self) -> None:
        self.sh("x='a b'; cd /; f() { echo \"f $1\"; }; declare -a list=(1 2)")
        self.assertEqual(self.sh("echo \"$x $PWD ${#list[@]}\"; f y >&2").stdout, "a b / 2\n")

    def test_streams_and_status(self) -> None:
        done = self.sh("echo out; echo err >&2; ls /nowhere 2>/dev/null")
        self.assertEqual((done.stdout, done.stderr), ("out\n", "err\n"))
        self.assertEqual((done.error["name"], done.error["value"]), ("ExitError", "2"))
        self.assertIsNone(self.sh("cat; echo it\\'s 'q' <<'E'\nE\n").error)
        self.assertEqual(self.sh("if; fi").error["name"], "ExitError")

    def test_exit_starts_a_new_shell(self) -> None:
        self.sh("y=1")
        done = self.sh("echo bye; exit 7")
        self.assertEqual((done.stdout, done.stderr, done.error["value"]), ("bye\n", "", "7"))
        self.assertEqual(self.sh("echo \"[$y]\"").stdout, "[]\n")
