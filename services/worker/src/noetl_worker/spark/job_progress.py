"""How far the jobs of one task are, from the driver's own records; loaded when Spark is."""

from typing import Any

from msgspec import Struct
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from noetl_contracts.commands.task_metrics import (
    STAGES_MAX,
    SkewedTask,
    SparkPhase,
    SparkProgress,
    StageProgress,
)

# Stages of one task that are added up; later ones are not looked at.
_STAGES_READ_MAX = 200
# A task is skewed that runs so many times as long as half of those of its stage.
SKEW_MIN = 5.0
_SKEW_SECONDS_MIN = 5.0
_RUNNING_READ_MAX = 8
_MEDIAN = 0.5
_OLDEST_FIRST = True
_END_STATUSES = frozenset({"COMPLETE", "FAILED", "SKIPPED"})


class StageWork(Struct, frozen=True, kw_only=True):
    """What the tasks of one stage have done so far."""

    running: int
    rows: int
    input_bytes: int
    shuffle_bytes: int
    spill_bytes: int


class JobProgressReader:
    """Reads the progress of one task's jobs, again and again; its tag is `mark`.

    A Spark Connect server and a session that is gone tell nothing.
    """

    def __init__(self, session: SparkSession, mark: str) -> None:
        self._session = session
        self._mark = mark
        self._ended_stages: dict[int, StageWork] = {}

    def read_progress(self, phase: SparkPhase, seconds: float) -> SparkProgress:
        """Return what has begun, what runs, and what it has read and moved."""
        empty_progress = SparkProgress(phase=phase, seconds=seconds)
        if "connect" in type(self._session).__module__:
            return empty_progress
        try:
            return self._read_jobs(phase, seconds)
        except (Py4JError, OSError, AttributeError):
            return empty_progress

    def _read_jobs(self, phase: SparkPhase, seconds: float) -> SparkProgress:
        context: Any = self._session.sparkContext
        tracker = context.statusTracker()
        jobs = sorted(tracker.getJobIdsForGroup(self._mark))
        active = set(tracker.getActiveStageIds()) if jobs else set()
        job_infos = [tracker.getJobInfo(job) for job in jobs]
        stage_numbers = sorted({number for job in job_infos if job for number in job.stageIds})
        running = [number for number in stage_numbers if number in active]
        stages = [tracker.getStageInfo(number) for number in running[:STAGES_MAX]]
        store = context._jsc.sc().statusStore()  # noqa: SLF001 - Spark's own page reads it, too
        work = [self._read_stage(store, number) for number in stage_numbers[-_STAGES_READ_MAX:]]
        return SparkProgress(
            phase=phase,
            seconds=seconds,
            jobs=len(jobs),
            stages=tuple(
                StageProgress(stage.stageId, stage.numCompletedTasks, stage.numTasks)
                for stage in stages
                if stage is not None
            ),
            # Spark's records run a little behind, and count the task that has just ended.
            tasks_running=min(
                sum(stage_work.running for stage_work in work if stage_work),
                context.defaultParallelism,
            ),
            rows=sum(stage_work.rows for stage_work in work if stage_work),
            input_bytes=sum(stage_work.input_bytes for stage_work in work if stage_work),
            shuffle_bytes=sum(stage_work.shuffle_bytes for stage_work in work if stage_work),
            spill_bytes=sum(stage_work.spill_bytes for stage_work in work if stage_work),
            skew=self._find_skew(context, store, running[:STAGES_MAX]),
            page=context.uiWebUrl or "",
        )

    def _read_stage(self, store: Any, number: int) -> StageWork | None:
        """Return what a stage has done; None before it has begun."""
        if number in self._ended_stages:
            return self._ended_stages[number]
        try:
            data = store.lastStageAttempt(number)
        except Py4JError:
            # A stage whose rows were there already never begins.
            return None
        work = StageWork(
            running=data.numActiveTasks(),
            rows=data.inputRecords(),
            input_bytes=data.inputBytes(),
            shuffle_bytes=data.shuffleWriteBytes(),
            spill_bytes=data.diskBytesSpilled(),
        )
        if str(data.status()) in _END_STATUSES:
            self._ended_stages[number] = work
        return work

    def _find_skew(self, context: Any, store: Any, stages: list[int]) -> SkewedTask | None:
        """Find the task that runs longest, if it is far above the median of its stage."""
        worst: SkewedTask | None = None
        for number in stages:
            data = store.lastStageAttempt(number)
            if not data.numCompleteTasks():
                continue
            slow_task = self._find_slow_task(context, store, number, data.attemptId())
            if slow_task is not None and (worst is None or slow_task.times > worst.times):
                worst = slow_task
        return worst

    def _find_slow_task(
        self, context: Any, store: Any, number: int, attempt: int
    ) -> SkewedTask | None:
        classes = context._jvm  # noqa: SLF001 - Python's side has no arrays of Java
        quantiles = context._gateway.new_array(classes.double, 1)  # noqa: SLF001 - as above
        quantiles[0] = _MEDIAN
        summary = store.taskSummary(number, attempt, quantiles)
        if not summary.isDefined():
            return None
        median_s = summary.get().duration().apply(0) / 1000
        statuses = classes.java.util.ArrayList()
        statuses.add(classes.org.apache.spark.status.api.v1.TaskStatus.RUNNING)
        order = (classes.scala.Option.empty(), _OLDEST_FIRST)
        tasks = store.taskList(number, attempt, 0, _RUNNING_READ_MAX, *order, statuses)
        now_ms = classes.java.lang.System.currentTimeMillis()
        worst: SkewedTask | None = None
        for place in range(tasks.size()):
            task = tasks.apply(place)
            ran_s = (now_ms - task.launchTime().getTime()) / 1000
            times = ran_s / max(median_s, 0.001)
            is_slow = ran_s >= _SKEW_SECONDS_MIN and times > SKEW_MIN
            if is_slow and (worst is None or times > worst.times):
                worst = SkewedTask(stage=number, task=task.index(), times=round(times, 1))
        return worst
