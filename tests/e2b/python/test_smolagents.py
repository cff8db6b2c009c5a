"""smolagents: its executor runs an agent's code in a sandbox, without a model here."""

import pytest
import smolagents



@pytest.fixture(scope="module")
def executor():
    from smolagents.monitoring import AgentLogger, LogLevel
    from smolagents.remote_executors import E2BExecutor

    made = E2BExecutor([], AgentLogger(level=LogLevel.ERROR), timeout=900)
    yield made
    made.cleanup()


def test_code_variables_and_logs(executor):
    executor.send_variables({"numbers": [1, 2, 3]})
    done = executor("print('counting')\nsum(numbers)")
    assert str(done.output) == "6"
    assert "counting" in done.logs
    assert not done.is_final_answer
    executor("later = sum(numbers) * 7")
    assert str(executor("later").output) == "42"


def test_an_answer_ends_the_run(executor):
    from smolagents import FinalAnswerTool

    executor.send_tools({"final_answer": FinalAnswerTool()})
    done = executor("final_answer({'found': [1, 2]})")
    assert done.is_final_answer
    assert done.output == {"found": [1, 2]}


def test_an_error_is_told(executor):
    from smolagents.utils import AgentError

    with pytest.raises(AgentError, match="ZeroDivisionError"):
        executor("1 / 0")


def test_a_tool_runs_in_the_sandbox(executor):
    class Double(smolagents.Tool):
        name = "double"
        description = "Doubles a number."
        inputs = {"number": {"type": "integer", "description": "The number."}}
        output_type = "integer"

        def forward(self, number: int) -> int:
            return number * 2

    executor.send_tools({"double": Double()})
    assert str(executor("double(21)").output) == "42"
