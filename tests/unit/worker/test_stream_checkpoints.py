"""What a stream keeps in the payload store: the steps of its source, and Spark's own checkpoint."""

from pathlib import Path
from typing import Any

import pytest
from tests.support.working import EXECUTION, ORGANIZATION, TENANT

from noetl_contracts import codec, locators
from noetl_contracts.payloads import JSON_MEDIA_TYPE, PayloadRef
from noetl_playbook.model.datasets import DatasetSource
from noetl_worker.datasets import address, read_plan
from noetl_worker.datasets.read_plan import ReadPlan
from noetl_worker.spark.streams import arrived_source, checkpoint_objects
from noetl_worker.spark.streams.arrived_source import ArrivedReader
from noetl_worker.spark.streams.checkpoint_folder import CheckpointFolder
from noetl_worker.spark.streams.checkpoint_objects import CheckpointObjects, StreamHead
from noetl_worker.spark.streams.stream_head import OpenCheckpoint
from noetl_worker.spark.tables import store_access
from noetl_worker.spark.tables.store_access import SparkRefusal, StoreAddress
from noetl_worker.spark.tables.stream_plans import SourceColumns, StreamInput, StreamTotals

COLUMNS = SourceColumns(described="d", format="ndjson", schema="")
NO_LIMIT: Any = None


@pytest.fixture
def home(tmp_path: Path) -> StoreAddress:
    return StoreAddress(
        url=f"file://{tmp_path}/payloads", tenant_id=TENANT, organization_id=ORGANIZATION
    )


@pytest.fixture
def arriving(tmp_path: Path) -> Path:
    """The folder in which files arrive."""
    folder = tmp_path / "files" / "in"
    folder.mkdir(parents=True)
    return folder


def open_reader(home: StoreAddress, arriving: Path, *, files_per_batch: int = 10) -> ArrivedReader:
    """A reader as a new process has it."""
    place = address.build_local_address(arriving, "in")
    plan = ReadPlan(
        address=place,
        source=DatasetSource(path="noetl://files/in/", format="ndjson"),
        format="ndjson",
        schema=read_plan.encode_schema(read_plan.pa.schema([("id", read_plan.pa.int64())])),
        pieces=[],
    )
    return ArrivedReader(
        StreamInput(
            home=home,
            plan=plan,
            arrivals=CheckpointObjects(home, "orders").arrivals_prefix,
            rejects="rejects/1/t/d",
            tasks=2,
            files_per_batch=files_per_batch,
        )
    )


def put_file(arriving: Path, name: str, rows: int = 1) -> None:
    (arriving / f"{name}.ndjson").write_text('{"id": 1}\n' * rows)


def files_of(home: StoreAddress, step: int) -> list[str]:
    """The names of the files of a step."""
    log = CheckpointObjects(home, "orders").open_arrivals()
    return [Path(file.path).stem for file in log.get_step(step).files]


def test_a_step_takes_up_what_is_new_and_stays_the_same(home: StoreAddress, arriving: Path) -> None:
    reader = open_reader(home, arriving)
    start = reader.initialOffset()
    assert reader.latestOffset(start, NO_LIMIT) == start
    put_file(arriving, "a")
    first = reader.latestOffset(start, NO_LIMIT)
    put_file(arriving, "b")
    # Another process asks for the same step: it was planned.
    again = open_reader(home, arriving)
    assert again.latestOffset(start, NO_LIMIT) == first
    assert files_of(home, 1) == ["a"]
    second = again.latestOffset(first, NO_LIMIT)
    assert files_of(home, 2) == ["b"]
    assert again.latestOffset(second, NO_LIMIT) == second
    pieces = [
        piece.file.path for group in again.partitions(start, second) for piece in group.pieces
    ]
    assert [Path(path).stem for path in pieces] == ["a", "b"]


def test_a_step_is_bounded_and_says_what_waits(home: StoreAddress, arriving: Path) -> None:
    for name in "abcde":
        put_file(arriving, name)
    reader = open_reader(home, arriving, files_per_batch=2)
    reader.latestOffset(reader.initialOffset(), NO_LIMIT)
    step = CheckpointObjects(home, "orders").open_arrivals().get_step(1)
    assert files_of(home, 1) == ["a", "b"]
    assert step.waiting == 3


def test_what_arrives_later_is_not_available_now(home: StoreAddress, arriving: Path) -> None:
    put_file(arriving, "a")
    reader = open_reader(home, arriving)
    reader.prepareForTriggerAvailableNow()
    put_file(arriving, "b")
    first = reader.latestOffset(reader.initialOffset(), NO_LIMIT)
    assert reader.latestOffset(first, NO_LIMIT) == first
    assert files_of(home, 1) == ["a"]


def test_a_file_that_grew_is_refused_unless_it_was_read_as_it_is(
    home: StoreAddress, arriving: Path
) -> None:
    put_file(arriving, "a")
    reader = open_reader(home, arriving)
    start = reader.initialOffset()
    first = reader.latestOffset(start, NO_LIMIT)
    put_file(arriving, "a", rows=2)
    with pytest.raises(SparkRefusal, match=r"in/a\.ndjson had 10 bytes"):
        reader.latestOffset(first, NO_LIMIT)
    # The step is read again, after the file was repaired.
    again = open_reader(home, arriving)
    again.partitions(start, first)
    assert again.latestOffset(first, NO_LIMIT) == first


def test_old_steps_are_not_needed_to_know_what_was_taken_up(
    home: StoreAddress, arriving: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrived_source, "STREAM_STEPS_WHOLE_EVERY", 3)
    reader = open_reader(home, arriving)
    offset = reader.initialOffset()
    for number in range(5):
        put_file(arriving, f"f{number}")
        offset = reader.latestOffset(offset, NO_LIMIT)
    log = CheckpointObjects(home, "orders").open_arrivals()
    asked: list[int] = []
    get_step = checkpoint_objects.ArrivalLog.get_step
    monkeypatch.setattr(
        checkpoint_objects.ArrivalLog,
        "get_step",
        lambda self, number: asked.append(number) or get_step(self, number),
    )
    assert {Path(path).stem for path in log.read_taken(5)} == {f"f{number}" for number in range(5)}
    assert asked == [5, 4, 3]


def open_checkpoint(home: StoreAddress) -> OpenCheckpoint:
    """The checkpoint as a new run finds it."""
    objects = CheckpointObjects(home, "orders")
    head = objects.find_head() or objects.create_head(
        StreamHead(series="t", source="in", target="out", columns=COLUMNS)
    )
    totals = StreamTotals(execution_id=EXECUTION)
    return OpenCheckpoint(
        objects=objects,
        head=head,
        latest=objects.find_latest(),
        columns=COLUMNS,
        query="q",
        totals=totals,
    )


def open_folder(home: StoreAddress, path: Path) -> CheckpointFolder:
    path.mkdir()
    folder = CheckpointFolder(path, open_checkpoint(home))
    folder.restore()
    return folder


def write_offsets(path: Path, batch: int, text: str) -> None:
    (path / "offsets").mkdir(exist_ok=True)
    (path / "offsets" / str(batch)).write_text(text)
    # What Hadoop's file system adds.
    (path / "offsets" / f".{batch}.crc").write_bytes(b"crc")


def test_the_next_run_finds_what_the_last_one_has_stored(
    home: StoreAddress, tmp_path: Path
) -> None:
    folder = open_folder(home, tmp_path / "one")
    totals = StreamTotals(execution_id=EXECUTION)
    write_offsets(tmp_path / "one", 0, 'v1\n{}\n{"step": 1}')
    state = tmp_path / "one" / "state" / "0" / "0"
    state.mkdir(parents=True)
    (state / "1.delta").write_bytes(b"s" * 10_000)
    folder.store_begin(0, totals)
    assert folder.read_offset(0) == '{"step": 1}'

    open_folder(home, tmp_path / "two")
    names = {
        path.relative_to(tmp_path / "two").as_posix()
        for path in (tmp_path / "two").rglob("*")
        if path.is_file()
    }
    assert names == {"metadata", "offsets/0", "state/0/0/1.delta"}
    assert (tmp_path / "two" / "state/0/0/1.delta").read_bytes() == b"s" * 10_000
    latest = CheckpointObjects(home, "orders").find_latest()
    assert latest is not None
    ref = latest.files["state/0/0/1.delta"].ref
    assert isinstance(ref, PayloadRef)


def test_who_begins_a_batch_second_ends_before_it_writes(
    home: StoreAddress, tmp_path: Path
) -> None:
    totals = StreamTotals(execution_id=EXECUTION)
    one, two = open_folder(home, tmp_path / "one"), open_folder(home, tmp_path / "two")
    write_offsets(tmp_path / "one", 0, "a")
    one.store_begin(0, totals)
    one.store_begin(0, totals)
    write_offsets(tmp_path / "two", 0, "b")
    with pytest.raises(SparkRefusal, match="serves one stream at a time"):
        two.store_begin(0, totals)
    # A run that takes the batch over has its offsets.
    three = open_folder(home, tmp_path / "three")
    three.store_begin(0, totals)


def test_a_batch_is_done_when_spark_has_noted_it(home: StoreAddress, tmp_path: Path) -> None:
    folder = open_folder(home, tmp_path / "one")
    totals = StreamTotals(execution_id=EXECUTION)
    write_offsets(tmp_path / "one", 0, "a")
    folder.store_begin(0, totals)
    objects = CheckpointObjects(home, "orders")
    folder.store_end(0, totals)
    latest = objects.find_latest()
    assert latest is not None
    assert "commits/0" not in latest.files
    (tmp_path / "one" / "commits").mkdir()
    (tmp_path / "one" / "commits" / "0").write_text("v1")
    folder.store_end(0, totals)
    latest = objects.find_latest()
    assert latest is not None
    assert "commits/0" in latest.files


def remove_head(home: StoreAddress) -> None:
    """Do what the removal of a checkpoint does first."""
    ref = PayloadRef(
        uri=locators.build_named_locator(TENANT, ORGANIZATION, "streams/orders/head"),
        sha256=codec.digest_hex(b""),
        media_type=JSON_MEDIA_TYPE,
        payload_bytes=0,
        row_count=0,
    )
    store_access.run_with_store(home, lambda payloads: payloads.delete_payload(ref))


def test_a_run_whose_checkpoint_was_removed_ends_before_it_writes(
    home: StoreAddress, tmp_path: Path
) -> None:
    totals = StreamTotals(execution_id=EXECUTION)
    folder = open_folder(home, tmp_path / "one")
    remove_head(home)
    write_offsets(tmp_path / "one", 0, "a")
    with pytest.raises(SparkRefusal, match="removed before batch 0 was written"):
        folder.store_begin(0, totals)
    # So it does when another run has begun the stream anew.
    CheckpointObjects(home, "orders").create_head(
        StreamHead(series="u", source="in", target="out", columns=COLUMNS, folder="u")
    )
    with pytest.raises(SparkRefusal, match="removed before batch 0 was written"):
        folder.store_begin(0, totals)


def test_a_stream_that_begins_anew_finds_nothing_of_the_one_before(
    home: StoreAddress, arriving: Path
) -> None:
    put_file(arriving, "a")
    reader = open_reader(home, arriving)
    reader.latestOffset(reader.initialOffset(), NO_LIMIT)
    objects = CheckpointObjects(home, "orders")
    head = StreamHead(series="u", source="in", target="out", columns=COLUMNS, folder="u")
    objects.enter_folder(head)
    assert objects.open_arrivals().find_step(1) is None
    assert objects.find_latest() is None


def test_a_reader_forgets_files_that_are_gone(
    home: StoreAddress, arriving: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrived_source, "STREAM_STEPS_WHOLE_EVERY", 4)
    reader = open_reader(home, arriving)
    offset = reader.initialOffset()
    for number in range(8):
        put_file(arriving, f"f{number}")
        offset = reader.latestOffset(offset, NO_LIMIT)
        (arriving / f"f{number}.ndjson").unlink()
    put_file(arriving, "last")
    offset = reader.latestOffset(offset, NO_LIMIT)
    assert files_of(home, 9) == ["last"]
    remembered = reader._read_taken(8)
    assert [Path(path).stem for path in remembered] == ["f7"]
    assert remembered == CheckpointObjects(home, "orders").open_arrivals().read_taken(8)
