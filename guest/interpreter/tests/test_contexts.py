"""Contexts: their lives, their lines of executions, interrupts, and the protocol around them."""

from __future__ import annotations

import json
import os
import signal
import socket
import tempfile
import threading
import time

from tests.harness import ServerTest


class Lives(ServerTest):
    """Making, restarting and ending contexts."""

    def test_a_context_has_its_own_state_and_directory(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            os.chmod(directory, 0o755)
            id = self.context(cwd=directory)
            self.assertEqual(self.run_code("x = 1\nimport os\nos.getcwd()", context_id=id).text, directory)
            self.assertIn({"id": id, "language": "python", "cwd": directory}, self.call("GET", "/contexts")[1])
            self.assertEqual((self.run_code("x").error or {}).get("name"), "NameError")
            self.assertEqual(self.call("POST", f"/contexts/{id}/restart")[0], 200)
            self.assertEqual((self.run_code("x", context_id=id).error or {}).get("name"), "NameError")
            self.assertEqual(self.run_code("1", context_id=id).events[0]["execution_count"], 2)
            self.assertEqual(self.call("DELETE", f"/contexts/{id}")[0], 204)
            self.assertEqual(self.call("DELETE", f"/contexts/{id}")[0], 404)

    def test_a_restart_ends_what_runs(self) -> None:
        id = self.context()
        running = self.begin("print('go')\nwhile True: pass", context_id=id)
        running.wait_for("stdout")
        self.assertEqual(self.call("POST", f"/contexts/{id}/restart")[0], 200)
        error = running.wait_for("error")
        self.assertEqual((error["name"], error["value"]), ("ContextDied", "the context was restarted"))

    def test_contexts_run_beside_each_other_and_executions_one_by_one(self) -> None:
        first, second = self.context(), self.context("bash")
        slow = self.begin("import time\nprint('go')\ntime.sleep(2)\nx = 'slow'", context_id=first)
        slow.wait_for("stdout")
        began = time.monotonic()
        self.assertEqual(self.run_code("echo quick", context_id=second).stdout, "quick\n")
        self.assertLess(time.monotonic() - began, 1.5)
        texts = []

        def ask() -> None:
            texts.append(self.run_code("x", context_id=first).text)

        waiting = [threading.Thread(target=ask) for _ in range(4)]
        for thread in waiting:
            thread.start()
        for thread in waiting:
            thread.join(30)
        self.assertEqual(texts, ["slow"] * 4)

    def test_variables_of_the_environment_last_for_one_execution(self) -> None:
        cases = {
            "python": "import os; print(os.environ.get('RAMET_A'), os.environ['HOME'] != 'h')",
            "javascript": "console.log(process.env.RAMET_A || 'None', process.env.HOME !== 'h' ? 'True' : 'False')",
            "bash": "echo ${RAMET_A:-None} $([ $HOME = h ] && echo False || echo True)",
        }
        for language, code in cases.items():
            with self.subTest(language):
                env = {"RAMET_A": "it's", "HOME": "h"}
                self.assertEqual(self.run_code(code, language=language, env_vars=env).stdout, "it's False\n")
                self.assertEqual(self.run_code(code, language=language, env_vars=None).stdout, "None True\n")


class Interrupts(ServerTest):
    """Stopping code."""

    ENDLESS = {
        "python": ("import time\nprint('go', flush=True)\nwhile True: time.sleep(0.01)", "40 + 2"),
        "javascript": ("console.log('go'); while (true) {}", "40 + 2"),
        "bash": ("echo go; while :; do sleep 0.1; done; echo never", "echo 42"),
    }

    def test_by_request(self) -> None:
        for language, (code, _) in self.ENDLESS.items():
            with self.subTest(language):
                id = self.context(language)
                running = self.begin(code, context_id=id)
                running.wait_for("stdout")
                self.assertEqual(self.call("POST", f"/contexts/{id}/interrupt"), (200, {"interrupted": True}))
                name = "ExitError" if language == "bash" else "KeyboardInterrupt"
                self.assertEqual(running.wait_for("error")["name"], name)
                running.wait_for("end_of_execution")
                self.assertEqual(self.call("POST", f"/contexts/{id}/interrupt"), (200, {"interrupted": False}))

    def test_a_shell_whose_command_took_no_notice(self) -> None:
        # The shell waits for a command that ignores the interrupt, and goes on with the next.
        id = self.context("bash")
        code = "sh -c 'trap \"\" INT; echo go; sleep 0.6'; while :; do sleep 0.1; done"
        running = self.begin(code, context_id=id)
        running.wait_for("stdout")
        self.call("POST", f"/contexts/{id}/interrupt")
        self.assertEqual(running.wait_for("error")["name"], "ExitError")
        self.assertEqual(self.run_code("echo 42", context_id=id).stdout, "42\n")

    def test_by_leaving(self) -> None:
        for language, (code, next_code) in self.ENDLESS.items():
            with self.subTest(language):
                id = self.context(language)
                self.run_code("x=7", context_id=id)
                running = self.begin(code, context_id=id)
                running.wait_for("stdout")
                running.leave()
                done = self.run_code(next_code, context_id=id)
                self.assertEqual((done.text or done.stdout).strip(), "42")

    def test_an_await_and_a_flood_are_interrupted(self) -> None:
        cases = {
            "python": ["import asyncio\nprint('go')\nawait asyncio.sleep(100)", "while True: print('x' * 1000)"],
            "javascript": ["console.log('go'); await new Promise(() => {})"],
        }
        for language, codes in cases.items():
            for code in codes:
                with self.subTest(code):
                    id = self.context(language)
                    running = self.begin(code, context_id=id)
                    running.wait_for("stdout")
                    time.sleep(0.3)
                    running.leave()
                    self.assertEqual(self.run_code("1 + 1", context_id=id).text, "2")

    def test_one_that_waits_for_its_turn_never_runs(self) -> None:
        id = self.context()
        running = self.begin("import time\nran = False\nprint('go')\ntime.sleep(1)", context_id=id)
        running.wait_for("stdout")
        self.begin("ran = True", context_id=id).leave()
        running.wait_for("end_of_execution")
        self.assertEqual(self.run_code("ran", context_id=id).text, "False")

    def test_in_a_copy_of_the_machine_code_goes_on(self) -> None:
        id = self.context()
        running = self.begin("import time\nprint('go')\ntime.sleep(1)\nwent_on = True", context_id=id)
        running.wait_for("stdout")
        self.process.send_signal(48)
        time.sleep(0.1)
        running.leave()
        self.assertEqual(self.run_code("went_on", context_id=id).text, "True")

    def test_an_idle_context_shrugs_a_signal_off(self) -> None:
        id = self.context()
        pid = int(self.run_code("import os; os.getpid()", context_id=id).text or 0)
        os.kill(pid, signal.SIGINT)
        self.assertEqual(self.run_code("os.getpid()", context_id=id).text, str(pid))


class InterruptsOfUnheeding(Interrupts):
    """The same of a server that was started with signals ignored and blocked, as by a shell with `&`."""

    STARTER = ["env", "--ignore-signal=INT,QUIT,PIPE,TERM", "--block-signal=INT,TERM"]

    def test_what_a_context_starts_heeds_signals(self) -> None:
        for name, number in {"INT": 2, "QUIT": 3, "PIPE": 13, "TERM": 15}.items():
            code = f"import subprocess\nsubprocess.run(['sh', '-c', 'kill -{name} $$']).returncode"
            self.assertEqual(self.run_code(code).text, str(-number))


class Protocol(ServerTest):
    """What is refused, and connections."""

    def test_health(self) -> None:
        self.assertEqual(self.call("GET", "/health"), (200, "OK"))

    def test_refusals_name_their_reason(self) -> None:
        cases = [
            ({"code": "1", "context_id": "a", "language": "python"}, 400, "only one of"),
            ({"code": "1", "context_id": "none"}, 404, "none"),
            ({"code": "1", "language": "cobol"}, 400, "cobol"),
            ({"code": "1", "language": "r"}, 501, "'r'"),
            ({"code": "1", "env_vars": {"a": 1}}, 400, "env_vars"),
            ({"code": "1", "env_vars": {"a=b": ""}}, 400, "a=b"),
            ({"code": ["1"]}, 400, "code"),
        ]
        for body, status, word in cases:
            with self.subTest(body):
                answer = self.call("POST", "/execute", body)
                self.assertEqual(answer[0], status)
                self.assertIn(word, answer[1])
        self.assertEqual(self.call("POST", "/contexts", {"cwd": "/nowhere"})[0], 400)
        self.assertEqual(self.call("GET", "/nothing")[0], 404)

    def test_one_connection_serves_many_requests(self) -> None:
        with socket.create_connection(("127.0.0.1", self.port), 30) as client:
            body = json.dumps({"code": "2 + 3", "context_id": None, "language": None, "env_vars": None})
            one = f"POST /execute HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\nContent-Length: {len(body)}\r\n\r\n{body}"
            chunked = "POST /execute HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
            chunked += f"{len(body):x}\r\n{body}\r\n0\r\n\r\n"
            last = "GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            client.sendall((one + chunked + last).encode())
            answer = b""
            while piece := client.recv(65536):
                answer += piece
        self.assertEqual(answer.count(b'"text":"5"'), 2)
        self.assertTrue(answer.endswith(b"OK"))

    def test_signs_of_life(self) -> None:
        done = self.run_code("import time\ntime.sleep(5.5)")
        self.assertIn("keepalive", done.kinds)
