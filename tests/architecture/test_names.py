"""Names that leave a process: declared once, used, and in the units they say."""

import re
from pathlib import Path

from noetl_chassis.observability import names
from noetl_chassis.observability.names import MetricKind
from noetl_contracts import subjects
from noetl_messaging.streams import topology

ROOT = Path(__file__).parents[2]
METRIC = re.compile(r"noetl(?:_[a-z0-9]+)+")
UNBOUNDED = {"execution_id", "frame_id", "command_id", "stage_id", "url", "row", "event_id"}


def sources() -> str:
    return "\n".join(
        path.read_text()
        for top in ("libs", "services", "cli")
        for path in (ROOT / top).glob("**/src/**/*.py")
        if path.name != "names.py"
    )


def test_every_metric_is_declared_once() -> None:
    declared = [metric.name for metric in names.METRICS]
    assert len(declared) == len(set(declared))
    assert all(METRIC.fullmatch(name) for name in declared)


def test_a_metric_ends_as_its_kind_says() -> None:
    wrong = [
        metric.name
        for metric in names.METRICS
        if (metric.kind is MetricKind.COUNTER) != metric.name.endswith("_total")
    ]
    assert not wrong, f"counters end in _total and nothing else does: {wrong}"


def test_a_metric_in_seconds_or_bytes_says_so() -> None:
    by_unit = {"s": "seconds", "By": "bytes"}
    wrong = [
        metric.name
        for metric in names.METRICS
        if metric.unit in by_unit
        and by_unit[metric.unit] not in metric.name.removesuffix("_total").split("_")
    ]
    assert not wrong, f"name the base unit: {wrong}"


def test_no_metric_is_labelled_by_what_grows_without_end() -> None:
    wrong = [metric.name for metric in names.METRICS if UNBOUNDED & set(metric.labels)]
    assert not wrong, f"put identities into logs and spans: {wrong}"


def test_every_metric_says_what_it_means() -> None:
    wrong = [metric.name for metric in names.METRICS if not metric.meaning.endswith(".")]
    assert not wrong


def test_every_metric_is_measured_somewhere() -> None:
    constants = {
        constant: value.name for constant, value in vars(names).items() if value in names.METRICS
    }
    text = sources()
    unused = [name for constant, name in constants.items() if f"names.{constant}" not in text]
    assert not unused, f"measure it or remove it: {unused}"


def test_every_stream_takes_the_subjects_of_its_grammar() -> None:
    taken = {subject for stream in topology.STREAMS for subject in stream.subjects}
    for prefix in (
        subjects.INGEST,
        subjects.EVENTS,
        subjects.COMMANDS,
        subjects.DEAD_LETTERS,
        subjects.TRIGGERS,
    ):
        assert f"{prefix}.>" in taken


def test_permissions_know_the_subjects_of_the_grammar() -> None:
    text = (ROOT / "deploy/nats/permissions.conf").read_text()
    for prefix in (
        subjects.INGEST,
        subjects.EVENTS,
        subjects.COMMANDS,
        subjects.DEAD_LETTERS,
        subjects.POKES,
        subjects.TRIGGERS,
    ):
        assert f"{prefix}.>" in text, f"deploy/nats/permissions.conf does not mention {prefix}.>"


def test_the_stack_ships_the_permissions_that_are_deployed() -> None:
    shipped = ROOT / "cli/src/noetl_cli/stack/nats_permissions.conf"
    assert shipped.read_text() == (ROOT / "deploy/nats/permissions.conf").read_text()
