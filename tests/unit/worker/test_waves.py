"""How waves are cut, and what becomes of frames when a wave goes wrong: no Spark, same rules."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.support.polling import eventually
from tests.support.working import ORGANIZATION, TENANT, command_of

from noetl_chassis.clock import SystemClock
from noetl_contracts import codec, ids
from noetl_contracts.commands.command_work import Command, FrameWork
from noetl_contracts.commands.task_metrics import SparkProgress
from noetl_contracts.ids import StageId, WorkerId
from noetl_contracts.payloads import PayloadRef
from noetl_contracts.requests.facts import CommandLost, FrameClosed
from noetl_storage.payloads.memory import MemoryPayloads
from noetl_worker.domain import waves as cutting
from noetl_worker.domain.failures import ToolFailure
from noetl_worker.domain.frames import Frame, FrameOutcome, FramePolicy, FrameResult
from noetl_worker.domain.waves import FrameManifest, WaveFrame, WavePartition
from noetl_worker.spark.session_options import SparkLost, SparkUnavailable, SparkUnreachable
from noetl_worker.spark.wave_runner import FrameLost, WaveLimits, WaveRunner

pytestmark = pytest.mark.unit

STEP = {"step": "s", "tool": [{"name": "t", "kind": "noop"}]}
STAGE = StageId("7")
Job = Callable[[list[WavePartition]], Any]


def frame(unit: int, *, attempt: int = 1, run: str = "1") -> Command:
    frame_id = ids.derive_frame_id(STAGE, slot=unit, frame_index=0)
    work = FrameWork(
        stage_id=STAGE,
        frame_id=frame_id,
        root_frame_id=frame_id,
        unit=unit,
        frame_index=0,
        attempt=attempt,
        start=unit,
        end=unit + 1,
        total=100,
    )
    command = command_of(STEP, unit=f"frame-{unit}", attempt=attempt)
    fields = {"work": work, "run_id": run}
    return codec.convert_value({**codec.to_builtins(command), **codec.to_builtins(fields)}, Command)


def closed(placed: WaveFrame, rows_left: int) -> FrameManifest:
    command = placed.command
    if placed.frame is not None:
        result = FrameResult(
            rows_done=5 - rows_left,
            rows_failed=0,
            error=None,
            patch={},
            results=[],
            remaining=[],
            duration_s=0.1,
        )
        ran = FrameOutcome(result=result, rows_left=rows_left)
        return cutting.build_slot_manifest(placed, placed.frame, ran)
    assert isinstance(command.work, FrameWork)
    fact = FrameClosed(
        command_id=command.command_id,
        attempt=command.attempt,
        worker_id=WorkerId("w"),
        stage_id=STAGE,
        frame_id=command.work.frame_id,
        slot=command.work.unit,
        frame_index=0,
        row_count=1,
    )
    return cutting.build_manifest(placed, fact)


class Jobs:
    """Stands for the session: keeps what each job was given, and answers as it is told."""

    def __init__(self, payloads: MemoryPayloads, *, parts: int = 2) -> None:
        self.payloads = payloads
        self.parts = parts
        self.waves: list[list[WavePartition]] = []
        self.cancelled = 0
        self.rows_left = 0
        self.is_open = True
        self.strange: list[bytes] = []
        self.problem: Exception | None = None
        self.ended_before: Callable[[WaveFrame], bool] = lambda _: True
        self.gate = asyncio.Event()
        self.gate.set()

    async def spread_shares(
        self,
        cut: Callable[[int], list[bytes]],
        entry: Callable[..., Any],
        *,
        name: str,
        tell_progress: Callable[[SparkProgress], Awaitable[None]] | None = None,
    ) -> list[bytes]:
        if tell_progress is not None:
            await tell_progress(SparkProgress(phase="session", seconds=1))
        shares = [codec.decode_as(data, WavePartition) for data in cut(self.parts)]
        self.waves.append(shares)
        found = list(self.strange)
        for share in shares:
            for placed in filter(self.ended_before, share.frames):
                data = codec.encode_json(closed(placed, self.rows_left))
                name = cutting.build_bundle_name(share.name, share.part, placed.place)
                await self.payloads.put_named(
                    name, b"[" + data + b"]", tenant_id=TENANT, organization_id=ORGANIZATION
                )
                found.append(data)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.problem is not None:
            raise self.problem
        return found

    async def has_begun(self) -> bool:
        return bool(self.waves)

    async def was_cancelled(self) -> bool:
        return self.cancelled > 0

    def sizes(self) -> list[int]:
        return [sum(len(share.frames) for share in shares) for shares in self.waves]


@asynccontextmanager
async def open_waves(
    tell_progress: Callable[[Command, SparkProgress], Awaitable[None]] | None = None, **limits: Any
) -> AsyncIterator[tuple[WaveRunner, Jobs]]:
    payloads = MemoryPayloads()
    jobs = Jobs(payloads)
    waves = WaveRunner(
        spark_session=jobs,  # type: ignore[arg-type]  # it does what waves ask of a session
        entry=lambda batches: batches,
        payloads=payloads,
        worker_id=WorkerId("w"),
        clock=SystemClock(),
        limits=WaveLimits(**{"linger_s": 0.001, "poll_s": 0.01, **limits}),
        tell_progress=tell_progress,
    )
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(waves.serve_waves())
        yield waves, jobs
        serving.cancel()


async def test_frames_that_come_together_travel_together() -> None:
    async with open_waves() as (waves, jobs):
        facts = await asyncio.gather(*[waves.run_command_frame(frame(unit)) for unit in range(10)])
    assert jobs.sizes() == [10]
    assert [fact.slot for fact in facts if isinstance(fact, FrameClosed)] == list(range(10))
    assert [len(share.frames) for share in jobs.waves[0]] == [5, 5]


async def test_the_progress_of_a_wave_is_told_of_its_step() -> None:
    told: list[tuple[str, str]] = []

    async def tell(command: Command, progress: SparkProgress) -> None:
        told.append((command.step, progress.phase))

    async with open_waves(tell) as (waves, _):
        await asyncio.gather(*[waves.run_command_frame(frame(unit)) for unit in range(3)])
    assert told == [("s", "session")]


async def test_waves_grow_while_they_are_short() -> None:
    async with open_waves(waves_max=1, frames_max=64) as (waves, jobs):
        for _ in range(3):
            await asyncio.gather(*[waves.run_command_frame(frame(unit)) for unit in range(100)])
    assert jobs.sizes()[0] == 16
    assert max(jobs.sizes()) == 64


async def test_waiting_for_a_session_makes_no_wave_smaller() -> None:
    async with open_waves(waves_max=1, frames_max=64) as (waves, jobs):
        jobs.is_open = False
        await asyncio.gather(*[waves.run_command_frame(frame(unit)) for unit in range(100)])
    assert set(jobs.sizes()[:6]) == {16}


async def test_runs_do_not_share_a_wave() -> None:
    async with open_waves() as (waves, jobs):
        both = [waves.run_command_frame(frame(unit, run=str(unit % 2))) for unit in range(6)]
        await asyncio.gather(*both)
    assert jobs.sizes() == [3, 3]


async def test_what_was_lost_before_goes_alone() -> None:
    async with open_waves() as (waves, jobs):
        again = [waves.run_command_frame(frame(unit, attempt=2)) for unit in range(2)]
        await asyncio.gather(
            waves.run_command_frame(frame(5)), waves.run_command_frame(frame(6)), *again
        )
    assert sorted(jobs.sizes()) == [1, 1, 2]


async def test_a_lost_job_gives_back_exactly_the_frames_without_a_manifest() -> None:
    async with open_waves(poll_s=60) as (waves, jobs):
        jobs.ended_before = lambda placed: placed.place % 3 == 0
        jobs.problem = SparkLost("gone")
        facts = await asyncio.gather(*[waves.run_command_frame(frame(unit)) for unit in range(9)])
    assert [isinstance(fact, FrameClosed) for fact in facts] == [n % 3 == 0 for n in range(9)]
    lost = [fact for fact in facts if isinstance(fact, CommandLost)]
    assert {(item.reason, item.is_release) for item in lost} == {("wave_lost", False)}


async def test_a_manifest_that_cannot_be_read_counts_as_none() -> None:
    async with open_waves(poll_s=60) as (waves, jobs):
        jobs.ended_before = lambda _: False
        jobs.strange = [b"{", b'{"place": "one"}']
        assert isinstance(await waves.run_command_frame(frame(0)), CommandLost)


async def test_a_frame_that_ended_is_told_before_its_wave_is_over() -> None:
    async with open_waves() as (waves, jobs):
        jobs.ended_before = lambda placed: placed.place == 0
        jobs.gate.clear()
        slow = asyncio.ensure_future(waves.run_command_frame(frame(1)))
        first = asyncio.ensure_future(waves.run_command_frame(frame(0)))
        done, _ = await asyncio.wait([slow, first], return_when=asyncio.FIRST_COMPLETED, timeout=60)
        assert len(done) == 1
        jobs.gate.set()
        await asyncio.gather(slow, first)


async def test_a_wave_that_nobody_waits_for_is_cancelled() -> None:
    async with open_waves() as (waves, jobs):
        jobs.ended_before = lambda _: False
        jobs.gate.clear()
        running = [asyncio.ensure_future(waves.run_command_frame(frame(unit))) for unit in range(3)]
        await eventually(jobs.has_begun)
        running[0].cancel()
        await asyncio.gather(running[0], return_exceptions=True)
        assert jobs.cancelled == 0
        for item in running:
            item.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await eventually(jobs.was_cancelled)
        jobs.gate.set()
        jobs.ended_before = lambda _: True
        assert isinstance(await waves.run_command_frame(frame(9)), FrameClosed)


@pytest.mark.parametrize(
    ("problem", "kind", "is_retryable"),
    [
        (SparkUnavailable("no Java: install one"), "config", False),
        (SparkUnreachable("no master there"), "connection", True),
    ],
)
async def test_without_a_session_every_frame_says_why(
    problem: Exception,
    kind: str,
    is_retryable: bool,  # noqa: FBT001 - a case of the table
) -> None:
    async with open_waves() as (waves, jobs):
        jobs.problem = problem
        jobs.ended_before = lambda _: False
        found = await asyncio.gather(
            *[waves.run_command_frame(frame(unit)) for unit in range(3)], return_exceptions=True
        )
    errors = [item.error for item in found if isinstance(item, ToolFailure)]
    said = [(error.kind, error.message, error.retryable) for error in errors]
    assert said == [(kind, str(problem), is_retryable)] * 3


def opened(rows: int) -> Frame:
    frame_id = ids.derive_frame_id(STAGE, slot=0, frame_index=0)
    return Frame(
        frame_id=frame_id,
        root_frame_id=frame_id,
        stage_id=STAGE,
        slot=0,
        frame_index=0,
        base_index=0,
        attempt=1,
        rows_ref=PayloadRef(
            uri="noetl://tenant/acme/org/west/payloads/sha256/" + "0" * 64,
            sha256="0" * 64,
            media_type="m",
            payload_bytes=1,
        ),
        rows=[{"n": n} for n in range(rows)],
        policy=FramePolicy(),
    )


async def test_a_slots_frame_travels_without_its_rows_and_comes_back_with_what_is_left() -> None:
    async with open_waves() as (waves, jobs):
        jobs.rows_left = 2
        ran = await waves.run_slot_frame(frame(0), opened(5), may_leave_rows=True)
    assert (ran.result.rows_done, ran.rows_left) == (3, 2)
    (placed,) = jobs.waves[0][0].frames
    assert placed.may_leave_rows
    assert placed.frame is not None
    assert placed.frame.rows == []


async def test_a_slots_lost_frame_is_its_next_attempts() -> None:
    async with open_waves() as (waves, jobs):
        jobs.ended_before = lambda _: False
        jobs.problem = SparkLost("gone")
        with pytest.raises(FrameLost):
            await waves.run_slot_frame(frame(0), opened(5), may_leave_rows=False)


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 100])
def test_frames_are_dealt_evenly_and_none_is_left_out(parts: int) -> None:
    frames = [WaveFrame(place=place, command=frame(place)) for place in range(7)]
    dealt = cutting.deal_frames(frames, parts)
    assert sorted(item.place for part in dealt for item in part) == list(range(7))
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1


@pytest.mark.parametrize(
    ("size", "frames", "took_s", "expected"),
    [(16, 16, 0.5, 32), (16, 3, 0.5, 16), (64, 64, 0.5, 64), (16, 16, 10, 16), (16, 16, 60, 8)],
)
def test_the_next_wave_fits_what_the_last_one_took(
    size: int, frames: int, took_s: float, expected: int
) -> None:
    assert cutting.compute_next_size(size, frames=frames, took_s=took_s, frames_max=64) == expected
