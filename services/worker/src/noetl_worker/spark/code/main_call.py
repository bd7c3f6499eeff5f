"""Runs a task's `main` in its own process, over the session that the worker lends it."""

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
from msgspec import Struct, structs
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext, java_gateway
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from noetl_contracts.errors import ErrorObject
from noetl_contracts.json_values import to_json_result
from noetl_worker.sandbox import user_call
from noetl_worker.sandbox.source import read_user_traceback
from noetl_worker.settings import set_variables
from noetl_worker.spark import code_call
from noetl_worker.spark.code import row_notes
from noetl_worker.spark.code_call import CodeAnswer, CodeCall
from noetl_worker.spark.failures import FILE, explain_problem
from noetl_worker.spark.tables import named_tables
from noetl_worker.spark.tables.store_access import SparkRefusal

_ENTRY = "main"
_ARGUMENTS_MAX = 3
# They write each call, and each failed query with its text.
_LOUD_LOGGERS = ("py4j", "py4j.clientserver", "py4j.java_gateway", "SQLQueryContextLogger")


class LentSession(Struct, frozen=True, kw_only=True):
    """The worker's session as this process has it; `hand_over` gives a named frame back."""

    session: Any
    inputs: Mapping[str, Any]
    hand_over: Callable[[str, Any], None]


def answer_call(call: CodeCall, home: Path) -> CodeAnswer:
    """Call `main` and hand its tables over; what it raises is in the answer."""
    for name in _LOUD_LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        with _open_session(call, home) as lent_session:
            return _hand_over_value(_call_main(call, lent_session), lent_session)
    except (PySparkException, Py4JError, SparkRefusal) as problem:
        error = explain_problem(problem, call.code)
        if error is not None:
            return CodeAnswer(error=_add_line(error, problem, call.code))
        raised_error: BaseException = problem
    except BaseException as problem:  # noqa: BLE001 - every exception of user code is its answer
        raised_error = problem
    return CodeAnswer(
        raised=user_call.describe_exception(
            raised_error, source=call.code, has_network=True, file=FILE, folder=home.parent
        )
    )


def _add_line(error: ErrorObject, problem: BaseException, source: str) -> ErrorObject:
    """Say which line of the code asked Spark for what it refused."""
    details = dict(error.details or {})
    user_traceback = read_user_traceback(problem, source=source, file=FILE)
    if not user_traceback.line or "line" in details:
        return error
    details |= {"line": user_traceback.line, "line_text": user_traceback.line_text}
    return structs.replace(error, details=details)


@contextmanager
def _open_session(call: CodeCall, home: Path) -> Iterator[LentSession]:
    lent_session = _open_at_server(call) if call.address else _open_in_process(call, home)
    type(lent_session.session).stop = _refuse_stop
    yield lent_session


def _refuse_stop(*_: Any) -> NoReturn:
    raise RuntimeError("the session is shared with other tasks: main must not stop it")


def _open_in_process(call: CodeCall, home: Path) -> LentSession:
    set_variables({"PYSPARK_GATEWAY_PORT": str(call.port), "PYSPARK_GATEWAY_SECRET": call.secret})
    launch: Any = java_gateway.launch_gateway
    gateway = launch()
    shared = gateway.entry_point
    java_session = shared.get(code_call.SESSION)
    java_context = gateway.jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(
        java_session.sparkContext()
    )
    conf = SparkConf(_jvm=gateway.jvm, _jconf=java_context.getConf())
    context = SparkContext(jsc=java_context, gateway=gateway, conf=conf)
    # Python hands tables over in files, and the driver's own folder is out of sight.
    context._temp_dir = str(home)  # noqa: SLF001 - Spark takes no other folder
    if call.packages:
        context.environment["PYTHONPATH"] = call.packages
    context.setJobGroup(call.mark, call.name, interruptOnCancel=True)
    session = _wrap_session(gateway, context, java_session)
    row_notes.note_rows()
    setattr(SparkContext, "stop", _refuse_stop)  # noqa: B010 - a type has no place for it
    return LentSession(
        session=session,
        inputs={
            name: DataFrame(shared.get(code_call.name_input(name)), session) for name in call.inputs
        },
        hand_over=lambda name, frame: shared.put(code_call.name_result(name), frame._jdf),  # noqa: SLF001 - what Python's side lacks
    )


def _wrap_session(gateway: Any, context: SparkContext, java_session: Any) -> SparkSession:
    """Make Python's session of the driver's; Spark's default session stays what it was."""
    classes = getattr(gateway.jvm, "org.apache.spark.sql.classic.SparkSession")
    default_session = classes.getDefaultSession()
    session = SparkSession(context, java_session)
    if default_session.isDefined():
        classes.setDefaultSession(default_session.get())
    return session


def _open_at_server(call: CodeCall) -> LentSession:
    session: Any = SparkSession.builder.remote(call.address).getOrCreate()
    if call.mark:
        session.addTag(call.mark)

    def hand_over(name: str, frame: Any) -> None:
        frame.createOrReplaceTempView(code_call.name_view(code_call.name_result(name)))

    return LentSession(
        session=session,
        inputs={
            name: session.table(f"`{code_call.name_view(code_call.name_input(name))}`")
            for name in call.inputs
        },
        hand_over=hand_over,
    )


def _call_main(call: CodeCall, lent_session: LentSession) -> Any:
    main = _load_main(call.code)
    parameter_count = len(inspect.signature(main).parameters)
    return main(
        *(lent_session.session, lent_session.inputs, call.params)[
            : min(parameter_count, _ARGUMENTS_MAX)
        ]
    )


def _load_main(code: str) -> Callable[..., Any]:
    names: dict[str, Any] = {"__name__": "noetl_spark_task"}
    exec(compile(code, FILE, "exec"), names)  # noqa: S102 - the operator has allowed tasks to bring code
    main = names.get(_ENTRY)
    if not callable(main):
        text = "field 'code' must define main(spark, inputs) or main(spark, inputs, params)"
        raise SparkRefusal("validation", text)
    function: Callable[..., Any] = main
    return function


def _hand_over_value(value: Any, lent_session: LentSession) -> CodeAnswer:
    """Hand a table over, or those of a mapping by name; any other value travels as it is."""
    frame = _find_frame(value, lent_session.session)
    if frame is not None:
        lent_session.hand_over(code_call.SINGLE, frame)
        return CodeAnswer(tables=[code_call.SINGLE])
    if not isinstance(value, dict):
        return CodeAnswer(value=_to_plain_value(value))
    frames = {str(name): _find_frame(item, lent_session.session) for name, item in value.items()}
    tables = {name: item for name, item in frames.items() if item is not None}
    for name, table in tables.items():
        if not name:
            raise SparkRefusal("validation", "main returned a table without a name")
        lent_session.hand_over(name, table)
    other_values = {name: item for name, item in value.items() if str(name) not in tables}
    return CodeAnswer(tables=list(tables), value=_to_plain_value(other_values))


def _find_frame(value: Any, session: Any) -> Any:
    """Return a table of any kind as a frame, None for other values."""
    if isinstance(value, DataFrame):
        return value
    if not isinstance(value, pa.Table) and type(value).__module__.partition(".")[0] == "pandas":
        value = _convert_pandas(value)
    if isinstance(value, pa.Table):
        return session.createDataFrame(value, named_tables.build_spark_schema(value.schema))
    return None


def _convert_pandas(value: Any) -> Any:
    """Return a frame of pandas as a table; its index is left out."""
    if type(value).__name__ != "DataFrame":
        return value
    return pa.Table.from_pandas(value, preserve_index=False)


def _to_plain_value(value: Any) -> Any:
    try:
        return to_json_result(value)
    except ValueError as problem:
        raise SparkRefusal("schema", f"main returned what has no JSON form: {problem}") from problem
