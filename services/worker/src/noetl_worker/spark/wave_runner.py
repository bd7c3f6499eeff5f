"""Gathers frames into waves: one Spark job for many frames.

Each frame's command keeps its own hold in the lane that took it: lease, beats, stop and report
are the lane's. What an executor says of a frame stands in the payload store before the job ends,
so that a job that dies loses only the frames that had not ended.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import structlog
from msgspec import Struct, structs

from noetl_chassis import identity
from noetl_chassis.clock import Clock
from noetl_chassis.observability import instruments, names
from noetl_contracts import codec, transient_objects
from noetl_contracts.commands.command_work import Command, FrameWork, ReduceWork
from noetl_contracts.commands.task_metrics import SparkProgress
from noetl_contracts.errors import ErrorObject
from noetl_contracts.ids import WorkerId
from noetl_contracts.requests.facts import CommandLost, Fact
from noetl_storage.ports.ledger_ports import Payloads
from noetl_worker.domain import waves
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.domain.frames import Frame, FrameOutcome
from noetl_worker.domain.waves import FrameManifest, WaveFrame, WavePartition
from noetl_worker.payloads.tenant_payloads import PayloadCache, PayloadOwner, TenantPayloads
from noetl_worker.spark.session import SharedSparkSession
from noetl_worker.spark.session_options import SparkUnavailable, SparkUnreachable
from noetl_worker.spark.wave_manifests import WaveManifests, decode_manifest

_GATHERINGS_MAX = 10

log = structlog.get_logger(__name__)


class WaveLimits(Struct, frozen=True, kw_only=True):
    """How waves are cut: `waves_max` run at once, each of at most `frames_max` frames.

    A wave waits `linger_s` for more frames as long as more come; while it runs, what has ended is
    looked for every `poll_s`. With `parts_max` 0 a wave has as many partitions as tasks can run.
    """

    frames_max: int = 64
    waves_max: int = 2
    parts_max: int = 0
    linger_s: float = 0.03
    poll_s: float = 0.5


class FrameLost(Exception):  # noqa: N818 - it says what became of a frame
    """A wave lost a slot's frame: the slot is given back, and its next attempt runs the frame."""


class _WaveMember:
    """One frame on its way, and the manifest that ends it; None when there is none."""

    def __init__(
        self, command: Command, frame: Frame | None = None, *, may_leave_rows: bool = False
    ) -> None:
        self.command = command
        self.frame = frame
        self.may_leave_rows = may_leave_rows
        self.ended: asyncio.Future[FrameManifest | None] = (
            asyncio.get_running_loop().create_future()
        )
        self.wave: _Wave | None = None

    @property
    def sharing_key(self) -> tuple[str, ...]:
        """Tell whose frames may share a wave: one run's, and none that was lost before.

        What brought down a wave once goes alone the next time, and takes nobody with it.
        """
        command, work = self.command, self.command.work
        attempt = work.attempt if isinstance(work, FrameWork | ReduceWork) else command.attempt
        alone = () if attempt == 1 else (command.command_id,)
        return (command.tenant_id, command.organization_id, command.run_id, *alone)


class _Wave:
    """The frames of one job, by place."""

    def __init__(self, members: list[_WaveMember], name: str) -> None:
        self.name = name
        self.members = members
        self.task: asyncio.Task[None] | None = None
        # How many its job has, once it is cut.
        self.parts = 0
        self.is_given_up = False

    @property
    def is_over(self) -> bool:
        """Tell whether nobody waits for any of its frames."""
        return all(member.ended.done() for member in self.members)


class WaveRunner:
    """Runs frames of one worker on Spark; `entry` is what an executor calls with its shares."""

    def __init__(
        self,
        *,
        spark_session: SharedSparkSession,
        entry: Callable[..., Any],
        payloads: Payloads,
        worker_id: WorkerId,
        clock: Clock,
        limits: WaveLimits,
        tell_progress: Callable[[Command, SparkProgress], Awaitable[None]] | None = None,
    ) -> None:
        self._spark_session = spark_session
        self._tell_progress = tell_progress
        self._entry = entry
        self._payloads = payloads
        self._worker_id = worker_id
        self._clock = clock
        self._limits = limits
        self._size = min(waves.SIZE_FIRST, limits.frames_max)
        self._queue: deque[_WaveMember] = deque()
        self._arrived = asyncio.Event()
        self._room = asyncio.Semaphore(limits.waves_max)

    async def run_command_frame(self, command: Command) -> Fact:
        """Run a frame in one of the next waves; return the fact that ends its command.

        Raises `ToolFailure` where no Spark session can be started.
        """
        manifest = await self._wait_for_manifest(_WaveMember(command))
        if manifest is None or manifest.fact is None:
            return build_wave_lost(command)
        return manifest.fact

    async def run_slot_frame(
        self, command: Command, frame: Frame, *, may_leave_rows: bool
    ) -> FrameOutcome:
        """Run a frame that a slot has recorded; raises `ToolFailure` or `FrameLost`."""
        bare = structs.replace(frame, rows=[])
        manifest = await self._wait_for_manifest(
            _WaveMember(command, bare, may_leave_rows=may_leave_rows)
        )
        if manifest is None:
            raise FrameLost
        if manifest.ran is None:
            raise ToolFailure(manifest.error or build_error("internal", "the frame gave no result"))
        return manifest.ran

    async def _wait_for_manifest(self, member: _WaveMember) -> FrameManifest | None:
        self._queue.append(member)
        self._arrived.set()
        try:
            return await member.ended
        finally:
            self._forget_member(member)

    async def serve_waves(self) -> None:
        """Start waves for as long as the worker lives."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._room.acquire()
                members = await self._gather_members()
                execution_id = members[0].command.execution_id
                wave = _Wave(
                    members, transient_objects.build_wave_name(execution_id, identity.mint_token())
                )
                for member in members:
                    member.wave = wave
                wave.task = group.create_task(self._run_wave(wave))
                wave.task.add_done_callback(lambda _: self._room.release())

    def _forget_member(self, member: _WaveMember) -> None:
        """Forget a frame; a wave that nobody waits for any more is cancelled."""
        with contextlib.suppress(ValueError):
            self._queue.remove(member)
        wave = member.wave
        is_given_up = wave is not None and wave.is_over and member.ended.cancelled()
        if is_given_up and wave is not None and wave.task is not None:
            wave.is_given_up = True
            wave.task.cancel()

    async def _gather_members(self) -> list[_WaveMember]:
        """Wait for a frame, and a moment for those that come with it."""
        while not self._queue:
            self._arrived.clear()
            await self._arrived.wait()
        last_count = 0
        for _ in range(_GATHERINGS_MAX):
            count = len(self._queue)
            if count == last_count or count >= self._size:
                break
            last_count = count
            await asyncio.sleep(self._limits.linger_s)
        if not self._queue:
            return await self._gather_members()
        group = self._queue[0].sharing_key
        members = [wave_member for wave_member in self._queue if wave_member.sharing_key == group][
            : self._size
        ]
        member_set = set(members)
        self._queue = deque(member for member in self._queue if member not in member_set)
        return members

    async def _run_wave(self, wave: _Wave) -> None:
        """Run one wave's job, end every frame of it one way or another, and clear up."""
        began, is_warm = self._clock.monotonic_s(), self._spark_session.is_open
        manifests = WaveManifests(wave.name, self._build_payloads(wave))
        try:
            outcome = await self._run_and_settle(wave, manifests)
        except asyncio.CancelledError as problem:
            if not wave.is_given_up:
                raise
            outcome = problem
        took_s = self._clock.monotonic_s() - began
        count = len(wave.members)
        instruments.add_to_counter(
            names.WAVES_ENDED, labels={names.OUTCOME: _classify_outcome(outcome)}
        )
        instruments.add_to_counter(names.WAVE_FRAMES, count)
        if is_warm:
            # The start of a session says nothing about the frames that waited for it.
            self._size = waves.compute_next_size(
                self._size, frames=count, took_s=took_s, frames_max=self._limits.frames_max
            )
        await _clear_wave(wave, manifests, has_ended=isinstance(outcome, list))

    async def _run_and_settle(self, wave: _Wave, manifests: WaveManifests) -> Any:
        """Run the job and end its frames; return the manifests, or what ended it early."""
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self._watch_manifests(wave, manifests))
            # What ends a job is a matter of its frames, never of the other waves.
            (outcome,) = await asyncio.gather(self._submit_job(wave), return_exceptions=True)
            watching.cancel()
        if isinstance(outcome, list):
            _end_frames(wave, outcome)
        elif isinstance(outcome, SparkUnavailable):
            _fail_frames(wave, build_error("config", str(outcome), source="spark"))
        elif isinstance(outcome, SparkUnreachable):
            _fail_frames(wave, build_error("connection", str(outcome), source="spark"))
        elif isinstance(outcome, BaseException):
            log.warning("a wave ended early", wave=wave.name, reason=_summarize_problem(outcome))
        if not wave.is_over:
            await asyncio.gather(_collect_manifests(wave, manifests), return_exceptions=True)
            _lose_rest(wave)
        return outcome

    async def _submit_job(self, wave: _Wave) -> list[bytes]:
        """Run the job; return the manifests that it gives back."""
        first = wave.members[0].command
        wave_frames = [
            WaveFrame(
                place=place,
                command=member.command,
                frame=member.frame,
                may_leave_rows=member.may_leave_rows,
            )
            for place, member in enumerate(wave.members)
        ]

        def cut_partitions(parts: int) -> list[bytes]:
            frames_by_part = waves.deal_frames(
                wave_frames, min(parts, self._limits.parts_max or parts)
            )
            wave.parts = len(frames_by_part)
            return [
                codec.encode_json(
                    WavePartition(
                        name=wave.name,
                        part=part,
                        tenant_id=first.tenant_id,
                        organization_id=first.organization_id,
                        worker_id=self._worker_id,
                        frames=frames,
                    )
                )
                for part, frames in enumerate(frames_by_part)
            ]

        tell = self._tell_progress
        return await self._spark_session.spread_shares(
            cut_partitions,
            self._entry,
            name=f"wave of step {first.step}",
            # All frames of a wave are of one step.
            tell_progress=None if tell is None else partial(tell, first),
        )

    async def _watch_manifests(self, wave: _Wave, manifests: WaveManifests) -> None:
        """End frames whose manifests are there while the job goes on."""
        while not wave.is_over:
            await asyncio.sleep(self._limits.poll_s)
            # What cannot be seen now is seen at the end.
            await asyncio.gather(_collect_manifests(wave, manifests), return_exceptions=True)

    def _build_payloads(self, wave: _Wave) -> TenantPayloads:
        command = wave.members[0].command
        place = PayloadOwner(tenant_id=command.tenant_id, organization_id=command.organization_id)
        return TenantPayloads(self._payloads, place=place, cache=PayloadCache(bytes_max=0))


async def _collect_manifests(wave: _Wave, manifests: WaveManifests) -> None:
    """End every frame that has a manifest in the store; raises `ToolFailure`."""
    _end_frames(wave, await manifests.read_manifests())


def _end_frames(wave: _Wave, manifests: list[bytes]) -> None:
    """End the frames that manifests are of."""
    for data in manifests:
        manifest = decode_manifest(data, wave.name)
        member = None if manifest is None else wave.members[manifest.place]
        if member is not None and not member.ended.done():
            member.ended.set_result(manifest)


async def _clear_wave(wave: _Wave, manifests: WaveManifests, *, has_ended: bool) -> None:
    """Remove what a wave has left in the store; what stays is garbage, and collected as such."""
    clearing = manifests.clear_wave(parts=wave.parts, has_ended=has_ended)
    (problem,) = await asyncio.gather(clearing, return_exceptions=True)
    if problem is not None:
        log.info(
            "a wave's manifests stay for now", wave=wave.name, reason=_summarize_problem(problem)
        )


def _lose_rest(wave: _Wave) -> None:
    """Give back what has no manifest: it is handed out again, alone, under the next fence."""
    for member in wave.members:
        if not member.ended.done():
            member.ended.set_result(None)


def build_wave_lost(command: Command) -> CommandLost:
    """Build the fact that a command was lost with its wave: its frame's outcome is unknown."""
    return CommandLost(command_id=command.command_id, attempt=command.attempt, reason="wave_lost")


def _fail_frames(wave: _Wave, error: ErrorObject) -> None:
    """Fail every frame: no session could be started, so none of them began."""
    for member in wave.members:
        if not member.ended.done():
            member.ended.set_exception(ToolFailure(error))


def _summarize_problem(problem: BaseException) -> str:
    """Name a failure of Spark's; what tasks print may hold rows, so no more than the head."""
    return f"{type(problem).__name__}: {str(problem).partition(chr(10))[0][:200]}"


def _classify_outcome(outcome: Any) -> str:
    return "ended" if isinstance(outcome, list) else "lost"
