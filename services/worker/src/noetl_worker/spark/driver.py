"""Starts, watches and stops the Spark driver: the only lines that know Spark's inner objects.

Loaded when a session is first needed, by `noetl_worker.spark.session` alone.
"""

import contextlib
import subprocess
import sys
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext, java_gateway
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from noetl_chassis.java import JavaMissing, prepare_java_home
from noetl_worker.spark import java_output, kubernetes
from noetl_worker.spark.grants import launch_environ
from noetl_worker.spark.session_options import (
    LOOPBACK,
    SessionOptions,
    SparkLost,
    SparkUnavailable,
    SparkUnreachable,
    build_spark_settings,
    check_reachable,
)

_STOP_S = 10.0
# A process that was killed is gone a moment after its sockets are.
_GONE_S = 1.0
# The latest Java process of this one.
_launched: list[subprocess.Popen[bytes]] = []


def _spawn_launcher(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start Spark's launcher with no Python between fork and exec.

    Spark ignores SIGINT there in Python. The locks of a process's other threads are held for good
    in its fork, and a finalizer that runs there may want one: neither process would go on.
    """
    options.pop("preexec_fn", None)
    options |= java_output.pipe_options()
    # What runs in executors sees the variables of this process.
    options["env"] = launch_environ.build_shown_environ(options["env"])
    process = subprocess.Popen(command, process_group=0, **options)  # noqa: S603 - Spark's own launcher
    java_output.read_lines(process)
    _launched[:] = [process]
    return process


java_gateway.Popen = _spawn_launcher  # type: ignore[assignment,attr-defined]  # what Spark calls takes no other way


def start(options: SessionOptions) -> SparkSession:
    """Start a session, which takes seconds.

    Raises `SparkUnavailable`, `SparkUnreachable` where a cluster does not answer, and `SparkLost`
    where somebody killed its Java process meanwhile.
    """
    try:
        check_reachable(options)
        if options.is_remote:
            options.adopt({})
            builder = SparkSession.builder.remote(options.master)
            for key, value in options.conf.items():
                builder = builder.config(key, value)
            return builder.getOrCreate()
        _prepare_launch(options)
        builder = SparkSession.builder.master(options.master)
        for key, value in build_spark_settings(options).items():
            builder = builder.config(key, value)
        return builder.getOrCreate()
    except JavaMissing as problem:
        raise SparkUnavailable(str(problem)) from problem
    except ImportError as problem:
        text = f"Spark Connect needs packages that are not installed here: {problem}"
        raise SparkUnavailable(text) from problem
    except (Py4JError, PySparkException, OSError) as problem:
        reason = describe_problem(problem)
        if not options.is_remote and (java_reason := java_output.describe_reason()):
            reason = f"{java_reason} ({reason}): check NOETL_WORKER_SPARK_CONF"
        text = f"no Spark session could be started at {options.shown_address}: {reason}"
        was_killed = not options.is_remote and _was_killed()
        _forget_java()
        if was_killed:
            raise SparkLost(f"the Java process of a Spark session was killed: {text}") from problem
        if options.is_local:
            raise SparkUnavailable(text) from problem
        raise SparkUnreachable(text) from problem


def _was_killed() -> bool:
    """Tell whether a signal has ended the latest Java process; it was started for this one."""
    for process in _launched:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(_GONE_S) < 0
    return False


def _prepare_launch(options: SessionOptions) -> None:
    """Make the driver's folders, and say to its launcher where Java and Python are."""
    folder = options.folder
    for name in ("tmp", "local", "warehouse"):
        (folder / name).mkdir(parents=True, exist_ok=True, mode=0o700)
    if kubernetes.is_kubernetes(options.master):
        kubernetes.write_pod_template(folder)
    variables = {
        "JAVA_HOME": str(prepare_java_home(options.environ, folder=folder)),
        "PYSPARK_PYTHON": options.python,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    if options.is_loopback:
        variables["SPARK_LOCAL_IP"] = LOOPBACK
    options.adopt(variables)


def is_alive(session: SparkSession, problem: BaseException) -> bool:
    """Tell whether a session can run another job after `problem` ended one."""
    if _is_connect(session):
        # Its own class, not one below it, means that the server did not answer.
        return type(problem).__name__ not in {"SparkConnectGrpcException", "RetriesExceeded"}
    context = session.sparkContext
    try:
        return context._jsc is not None and not context._jsc.sc().isStopped()  # noqa: SLF001 - Spark has no other way to ask
    except (Py4JError, OSError):
        return False


def describe_problem(problem: BaseException) -> str:
    """Return the head of what an error says; one of Java's asks Java, which may be gone."""
    try:
        text = str(problem)
    except (Py4JError, OSError):
        text = "its Java process is gone"
    lines = [line for line in text.splitlines() if line.strip()]
    return " ".join([type(problem).__name__, *lines[:2]])[:400]


def mark_operations(session: SparkSession, mark: str, *, name: str) -> None:
    """Mark the operations that this thread begins from now on."""
    if _is_connect(session):
        session.addTag(mark)
    else:
        session.sparkContext.setJobGroup(mark, name, interruptOnCancel=True)


def unmark_operations(session: SparkSession, mark: str) -> None:
    """Take a mark off this thread; a session that is gone needs none."""
    if _is_connect(session):
        session.removeTag(mark)
        return
    with contextlib.suppress(Py4JError, OSError, AttributeError):
        session.sparkContext._jsc.clearJobGroup()  # noqa: SLF001 - Python's side lacks it


def cancel_operations(session: SparkSession, mark: str) -> None:
    """Cancel the operations under a mark; a session that is gone has none."""
    if _is_connect(session):
        session.interruptTag(mark)
        return
    with contextlib.suppress(Py4JError, OSError, AttributeError):
        session.sparkContext.cancelJobGroup(mark)


def stop(session: SparkSession) -> None:
    """Stop a session and the Java process that this process started for it."""
    with contextlib.suppress(Py4JError, OSError):
        session.stop()
    if not _is_connect(session):
        _forget_java()


def _forget_java() -> None:
    """End the Java process, and let the next session start another one."""
    gateway = SparkContext._gateway  # noqa: SLF001 - Spark keeps it for the whole process
    SparkContext._gateway = None  # noqa: SLF001 - as above
    SparkContext._jvm = None  # noqa: SLF001 - as above
    SparkContext._active_spark_context = None  # noqa: SLF001 - as above
    SparkSession._instantiatedSession = None  # noqa: SLF001 - as above
    if gateway is not None:
        with contextlib.suppress(Py4JError, OSError):
            gateway.shutdown()
    while _launched:
        _end_process(_launched.pop())


def _end_process(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        # It ends when its input does.
        with contextlib.suppress(OSError):
            process.stdin.close()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _is_connect(session: SparkSession) -> bool:
    return "connect" in type(session).__module__
