"""Tells which row a function of a task was called with when it raised, its characters hidden."""

import functools
import re
from collections.abc import Callable
from typing import Any

from pyspark import TaskContext
from pyspark.sql import udf
from pyspark.util import PythonEvalType

from noetl_worker.spark.failures import ROW_MARK

_BY_ROW = frozenset({PythonEvalType.SQL_BATCHED_UDF, PythonEvalType.SQL_ARROW_BATCHED_UDF})
_VALUES_MAX = 8
_CHARACTERS_MAX = 40
_DIGIT, _LETTER = re.compile(r"\d"), re.compile(r"[^\W\d_]")


class RowNotingFunction:
    """A function that adds to what it raises the form of its arguments; executors import it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function

    def __call__(self, *values: Any, **keyword_values: Any) -> Any:
        """Call the function."""
        try:
            return self._function(*values, **keyword_values)
        except Exception as problem:
            forms = [describe_form(value) for value in (*values, *keyword_values.values())][
                :_VALUES_MAX
            ]
            context = TaskContext.get()
            part = "?" if context is None else str(context.partitionId())
            problem.add_note(f"{ROW_MARK}partition {part}, row ({', '.join(forms)})")
            raise


def describe_form(value: Any) -> str:
    """Write a value with a 9 for each digit and an x for each letter, behind its type."""
    if value is None:
        return "None"
    text = _LETTER.sub("x", _DIGIT.sub("9", str(value)[:_CHARACTERS_MAX]))
    return f"{type(value).__name__} {text!r}"


def note_rows() -> None:
    """Have the functions that are made from now on, and called by row, tell theirs."""
    create = udf.UserDefinedFunction.__init__

    @functools.wraps(create)
    def create_noted(self: Any, func: Any, *arguments: Any, **keyword_arguments: Any) -> None:
        create(self, func, *arguments, **keyword_arguments)
        if self.evalType in _BY_ROW:
            self.func = RowNotingFunction(func)

    udf.UserDefinedFunction.__init__ = create_noted  # type: ignore[method-assign]  # Spark asks nobody
