"""What goes to the process in which a task's `main` runs, and what comes back."""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from noetl_contracts.errors import ErrorObject
from noetl_worker.sandbox.user_call import CallAnswer

# Names in the map that the worker and the process share.
SESSION = "session"
_INPUT, _RESULT = "input:", "result:"
# The result of a `main` that returns one table.
SINGLE = ""


class CodeCall(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call of `main`; frames are found in the worker's Spark session.

    `port` and `secret` open that session in its Java process, `address` at a Spark Connect server.
    What the call begins there has the tag `mark`. Executors find Python at `python`, and the
    packages of the task in the folder `packages`.
    """

    code: str
    inputs: list[str]
    params: dict[str, Any]
    mark: str
    name: str
    port: int = 0
    secret: str = ""
    address: str = ""
    packages: str = ""


class CodeAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of it: the tables `tables`, which the session has, and the plain `value`.

    `raised` is an exception of the code, `error` one of Spark or a refusal.
    """

    tables: list[str] = []
    value: Any = None
    raised: CallAnswer | None = None
    error: ErrorObject | None = None


class CodeFailed(Exception):  # noqa: N818 - it is the task's own failure, on its way out
    """The task's function raised, or its process ended."""

    def __init__(self, answer: CodeAnswer) -> None:
        self.answer = answer
        super().__init__("the code of a Spark task failed")


class CodeRunner(Struct, frozen=True, kw_only=True):
    """Calls `main` in its process; `send_call` blocks, and raises `CodeFailed`."""

    send_call: Callable[[CodeCall], CodeAnswer]
    master: str
    packages: str = ""


def name_input(name: str) -> str:
    """Name an input in the shared map."""
    return f"{_INPUT}{name}"


def name_result(name: str) -> str:
    """Name a table that `main` returned in the shared map."""
    return f"{_RESULT}{name}"


def name_view(name: str) -> str:
    """Name the view that stands for a frame where there is no shared map."""
    return f"noetl_{name.encode().hex()}"
