"""Spark's own log of the jobs of one task: what its history server shows."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from noetl_contracts import codec
from noetl_worker.spark import shared_session
from noetl_worker.spark.tables.kept_events import KeptEvents
from noetl_worker.spark.tables.store_access import SparkRefusal

# The longest wait for events that are under way to the log.
_WAIT_MS = 10_000
_GROUP = "spark.jobGroup.id"
_QUERY = "spark.sql.execution.id"
# The head of a log, which a history server needs, belongs to no job.
_ALWAYS = frozenset({"SparkListenerLogStart"})


class _Jobs(Struct):
    """The numbers of what belongs to a task."""

    jobs: set[int] = field(default_factory=set)
    stages: set[int] = field(default_factory=set)
    queries: set[int] = field(default_factory=set)


@contextmanager
def hold_event_log(session: SparkSession, kept: KeptEvents | None) -> Iterator[None]:
    """Keep the events of the jobs that this thread's task runs within the block.

    Raises `SparkRefusal` where the driver is elsewhere.
    """
    if kept is None:
        yield
        return
    if "connect" in type(session).__module__:
        text = (
            "event_log needs its driver in the worker, and this deployment runs Spark at an sc:// "
            "address: read the log of that server, and leave event_log out"
        )
        raise SparkRefusal("config", text)
    group = session.sparkContext.getLocalProperty(shared_session.GROUP) or ""
    with tempfile.TemporaryDirectory(prefix="events-") as name:
        folder = Path(name)
        listener = _start_listener(session, folder)
        try:
            yield
        finally:
            # A session that is gone has written what it could.
            with suppress(Py4JError, OSError):
                _stop_listener(session, listener)
            keep_task_events(folder, group, kept)


def _start_listener(session: SparkSession, folder: Path) -> Any:
    context: Any = session.sparkContext
    java: Any = context._jvm  # noqa: SLF001 - Spark's listeners are Java's alone
    conf = context._jsc.sc().conf().clone()  # noqa: SLF001 - as above
    for name, value in (
        ("spark.eventLog.compress", "false"),
        ("spark.eventLog.rolling.enabled", "false"),
        ("spark.eventLog.overwrite", "true"),
    ):
        conf.set(name, value)
    classes = getattr(java, "org.apache.spark.scheduler")
    listener = classes.EventLoggingListener(
        "task", java.scala.Option.apply(None), java.java.net.URI(folder.as_uri()), conf
    )
    listener.start()
    context._jsc.sc().addSparkListener(listener)  # noqa: SLF001 - as above
    return listener


def _stop_listener(session: SparkSession, listener: Any) -> None:
    context: Any = session.sparkContext
    spark = context._jsc.sc()  # noqa: SLF001 - as above
    spark.listenerBus().waitUntilEmpty(_WAIT_MS)
    spark.removeSparkListener(listener)
    listener.stop()


def keep_task_events(folder: Path, group: str, kept: KeptEvents) -> None:
    """Keep those events of a log that belong to the jobs of a group, in their order."""
    found = _Jobs()
    for _, event in _iterate_events(folder):
        _note_numbers(event, group, found)
    for line, event in _iterate_events(folder):
        if _belongs(event, found):
            kept.add_line(line)


def _iterate_events(folder: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                # The last one of a driver that died may be half.
                with suppress(ValueError):
                    event = codec.decode_json(line.encode())
                    if isinstance(event, dict):
                        yield line.rstrip("\n"), event


def _note_numbers(event: Mapping[str, Any], group: str, found: _Jobs) -> None:
    properties = event.get("Properties")
    if event.get("Event") != "SparkListenerJobStart" or not isinstance(properties, dict):
        return
    if properties.get(_GROUP) != group:
        return
    found.jobs.add(int(event["Job ID"]))
    found.stages |= {int(stage) for stage in event.get("Stage IDs", ())}
    query = str(properties.get(_QUERY, ""))
    if query.isdigit():
        found.queries.add(int(query))


def _belongs(event: Mapping[str, Any], found: _Jobs) -> bool:
    stage = event.get("Stage ID", (event.get("Stage Info") or {}).get("Stage ID"))
    return (
        event.get("Event") in _ALWAYS
        or event.get("Job ID") in found.jobs
        or stage in found.stages
        or event.get("executionId") in found.queries
    )
