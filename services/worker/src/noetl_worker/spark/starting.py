"""Starts, watches and stops the Spark driver: the only lines that know Spark's inner objects."""

import contextlib
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from msgspec import Struct

from noetl_contracts.errors import Permanent
from noetl_worker.spark.java import JavaMissing, java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOPBACK = "127.0.0.1"
_LOCAL = ("local", "")
_REMOTE = "sc://"
_STOP_S = 10.0
_SECRET = re.compile(r"(?i)(secret|password|passphrase|token|access[.]?key|credential)")


class SparkUnavailable(Permanent):
    """No Spark session can be started here until the deployment is changed."""


class Options(Struct, frozen=True, kw_only=True):
    """What a session is started with; `environ` is where a Java is looked for.

    `adopt` sets variables of this process that Spark's launcher hands on to its Java.
    """

    master: str
    folder: Path
    adopt: Callable[[Mapping[str, str]], None]
    environ: Mapping[str, str]
    conf: Mapping[str, str] = {}
    python: str = sys.executable
    memory_bytes: int = 1024**3
    jobs_max: int = 8

    @property
    def is_remote(self) -> bool:
        """Tell whether the driver is a Spark Connect server somewhere else."""
        return self.master.startswith(_REMOTE)

    @property
    def is_loopback(self) -> bool:
        """Tell whether nothing outside this machine takes part."""
        host = urlsplit(self.master).hostname if "://" in self.master else ""
        return self.master.startswith("local") or host in {_LOOPBACK, "localhost", "::1"}


def parse_conf(written: str) -> dict[str, str]:
    """Read `key=value;key=value`; raises `SparkUnavailable`.

    Secrets are refused: Spark shows its configuration to everyone who may see the application.
    """
    found: dict[str, str] = {}
    for entry in filter(None, (part.strip() for part in written.split(";"))):
        key, equals, value = (part.strip() for part in entry.partition("="))
        if not equals or not key.startswith("spark."):
            text = f"Spark setting {key!r:.80} is not of the form spark.name=value"
            raise SparkUnavailable(text)
        if _SECRET.search(key) and not key.endswith((".file", ".enabled")):
            text = (
                f"Spark setting '{key}' would show a secret in Spark's own listings: give it to "
                "Spark by a file or by its environment variable"
            )
            raise SparkUnavailable(text)
        found[key] = value
    return found


def settings_of(options: Options) -> dict[str, str]:
    """Return the configuration of a driver in this process's care; the operator's has precedence.

    A task is never tried again by Spark: whoever runs a second time has to be given a new fence.
    """
    folder = options.folder
    own = {
        "spark.app.name": "noetl",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.memory": f"{max(256, options.memory_bytes // 1024**2)}m",
        "spark.driver.extraJavaOptions": f'"-Djava.io.tmpdir={folder / "tmp"}"',
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "8",
        "spark.task.maxFailures": "1",
        "spark.speculation": "false",
        "spark.stage.maxConsecutiveAttempts": "1",
    }
    if options.is_loopback:
        own |= {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK}
    return own | dict(options.conf)


def start(options: Options) -> "SparkSession":
    """Start a session, which takes seconds; raises `SparkUnavailable`."""
    try:
        from pyspark.errors import PySparkException  # noqa: PLC0415 - loaded when first needed
        from pyspark.sql import SparkSession  # noqa: PLC0415 - loaded when first needed
    except ImportError as problem:
        text = "Spark is not installed here: install noetl-worker[spark]"
        raise SparkUnavailable(text) from problem
    try:
        if options.is_remote:
            builder = SparkSession.builder.remote(options.master)
            for key, value in options.conf.items():
                builder = builder.config(key, value)
            return builder.getOrCreate()
        _prepare(options)
        builder = SparkSession.builder.master(options.master)
        for key, value in settings_of(options).items():
            builder = builder.config(key, value)
        return builder.getOrCreate()
    except JavaMissing as problem:
        raise SparkUnavailable(str(problem)) from problem
    except ImportError as problem:
        text = f"Spark Connect needs packages that are not installed here: {problem}"
        raise SparkUnavailable(text) from problem
    except (PySparkException, OSError) as problem:
        _forget()
        text = f"no Spark session could be started at {options.master}: {problem}"
        raise SparkUnavailable(text[:1_000]) from problem


def _prepare(options: Options) -> None:
    """Make the driver's folders, and say to its launcher where Java and Python are."""
    folder = options.folder
    for name in ("tmp", "local", "warehouse"):
        (folder / name).mkdir(parents=True, exist_ok=True, mode=0o700)
    variables = {
        "JAVA_HOME": str(java_home(options.environ, folder=folder)),
        "PYSPARK_PYTHON": options.python,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    if options.is_loopback:
        variables["SPARK_LOCAL_IP"] = _LOOPBACK
    options.adopt(variables)


def is_alive(session: "SparkSession") -> bool:
    """Ask a session whether it can run another job."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - loaded when first needed

    if _is_connect(session):
        return not session.is_stopped  # type: ignore[attr-defined]  # of Connect's session
    context = session.sparkContext
    try:
        return context._jsc is not None and not context._jsc.sc().isStopped()  # noqa: SLF001 - Spark has no other way to ask
    except (Py4JError, OSError):
        return False


def tag(session: "SparkSession", mark: str, *, name: str) -> None:
    """Mark the operations that this thread begins from now on."""
    if _is_connect(session):
        session.addTag(mark)
    else:
        session.sparkContext.setJobGroup(mark, name, interruptOnCancel=True)


def untag(session: "SparkSession", mark: str) -> None:
    """Take a mark off this thread; a session that is gone needs none."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - loaded when first needed

    if _is_connect(session):
        session.removeTag(mark)
        return
    with contextlib.suppress(Py4JError, OSError, AttributeError):
        session.sparkContext._jsc.clearJobGroup()  # noqa: SLF001 - Python's side lacks it


def interrupt(session: "SparkSession", mark: str) -> None:
    """Cancel the operations under a mark; a session that is gone has none."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - loaded when first needed

    if _is_connect(session):
        session.interruptTag(mark)
        return
    with contextlib.suppress(Py4JError, OSError, AttributeError):
        session.sparkContext.cancelJobGroup(mark)


def stop(session: "SparkSession") -> None:
    """Stop a session and the Java process that this process started for it."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - loaded when first needed

    with contextlib.suppress(Py4JError, OSError):
        session.stop()
    if not _is_connect(session):
        _forget()


def _forget() -> None:
    """End the Java process, and let the next session start another one."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - loaded when first needed
    from pyspark import SparkContext  # noqa: PLC0415 - loaded when first needed
    from pyspark.sql import SparkSession  # noqa: PLC0415 - loaded when first needed

    gateway = SparkContext._gateway  # noqa: SLF001 - Spark keeps it for the whole process
    SparkContext._gateway = None  # noqa: SLF001 - as above
    SparkContext._jvm = None  # noqa: SLF001 - as above
    SparkContext._active_spark_context = None  # noqa: SLF001 - as above
    SparkSession._instantiatedSession = None  # noqa: SLF001 - as above
    if gateway is None:
        return
    with contextlib.suppress(Py4JError, OSError):
        gateway.shutdown()
    process: subprocess.Popen[bytes] = gateway.proc  # type: ignore[attr-defined, unused-ignore]  # set by Spark's launcher
    if process.stdin is not None:
        # It ends when its input does.
        with contextlib.suppress(OSError):
            process.stdin.close()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _is_connect(session: "SparkSession") -> bool:
    return "connect" in type(session).__module__
