"""The process in which a task's `main` runs: behind the walls of python tasks.

It reads one call from a pipe, answers on another, and waits for its end: Spark asks it for values
as long as its tables are read.
"""

import importlib
import sys
from pathlib import Path

import msgspec

from noetl_contracts.json_values import build_broken_text_failure
from noetl_worker.sandbox import call_pipes, confinement, user_call
from noetl_worker.sandbox.task_output import TaskOutput
from noetl_worker.sandbox.user_call import ProcessReady
from noetl_worker.spark.code_call import CodeAnswer, CodeCall


def main() -> None:
    """Serve one call after another."""
    bounds = msgspec.json.decode(sys.argv[1])
    asks, answers = call_pipes.take_pipes(bounds["output"])
    bounds["read"] = [*bounds.get("read", ()), *confinement.list_interpreter_paths()]
    missing_walls = confinement.confine_process(bounds)
    call_pipes.add_packages(bounds.get("packages"))
    calls = importlib.import_module("noetl_worker.spark.code.main_call")
    user_call.raise_exits()
    call_pipes.send_frame(msgspec.json.encode(ProcessReady(lacking=missing_walls)), answers)
    output = TaskOutput()
    home = Path(bounds["home"])
    while data := call_pipes.read_frame(asks):
        call = msgspec.json.decode(data, type=CodeCall)
        with output.capture_output():
            answer = calls.answer_call(call, home)
        call_pipes.send_frame(_encode_answer(answer), answers)


def _encode_answer(answer: CodeAnswer) -> bytes:
    try:
        return msgspec.json.encode(answer)
    except (TypeError, ValueError) as problem:
        is_text_broken = isinstance(problem, UnicodeEncodeError)
        failure = build_broken_text_failure(answer.value) if is_text_broken else problem
        raised_answer = user_call.describe_exception(failure, source="", has_network=True)
        return msgspec.json.encode(CodeAnswer(raised=raised_answer))


if __name__ == "__main__":
    main()
