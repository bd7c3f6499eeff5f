"""One warm SparkSession, started when it is first needed, and jobs that can be cancelled.

Nothing of Spark is imported before the first job: a worker that runs none pays nothing for it.
"""

import asyncio
import importlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import structlog
from msgspec import Struct

from noetl_chassis import identity
from noetl_contracts.commands.task_metrics import SparkPhase, SparkProgress
from noetl_contracts.errors import NoetlError
from noetl_worker.spark.session_options import SessionOptions, SparkLost, SparkUnavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

# What imports Spark is imported by name when it is wanted.
_DRIVER = "noetl_worker.spark.driver"
_SPREADING = "noetl_worker.spark.partition_jobs"
_PROGRESS = "noetl_worker.spark.job_progress"
# What a start takes on an idle machine.
_START_S = 8.0
_INTERRUPT_S = 0.5
_INTERRUPTS_MAX = 40
_CLOSE_S = 30.0
# Between two tellings of a job's progress; what is over sooner tells none.
_PROGRESS_S = 1.0

log = structlog.get_logger(__name__)


class _Job(Struct):
    """One call in a thread; `is_cancelled` is read there before Spark is asked for anything."""

    tag: str
    name: str
    # Ends what the job waits for outside Spark.
    end: Callable[[], None] | None = None
    phase: SparkPhase = "session"
    is_cancelled: bool = False


# Tells how far a job is.
TellProgress = Callable[[SparkProgress], Awaitable[None]]


class SharedSparkSession:
    """Owns the session of one worker and the threads that wait for its jobs."""

    def __init__(self, options: SessionOptions) -> None:
        self._options = options
        self._session: SparkSession | None = None
        self._opening = asyncio.Lock()
        self._threads: ThreadPoolExecutor | None = None
        # How long the latest start took.
        self._start_s = _START_S

    @property
    def is_open(self) -> bool:
        """Tell whether a session was started."""
        return self._session is not None

    async def run_job(
        self,
        job: Callable[["SparkSession"], T],
        *,
        name: str,
        tell_progress: TellProgress | None = None,
        end: Callable[[], None] | None = None,
    ) -> T:
        """Call `job` with the session in a thread of its own; return what it returns.

        While it waits and runs, its progress is told once a second. Cancelling the caller cancels
        every Spark operation that the job has begun, and calls `end`. What the job raises is raised
        here; `SparkLost` when the session died under it or while it started; `SparkUnavailable` or
        `SparkUnreachable` when none can be started.
        """
        run = _Job(tag=f"noetl-{identity.mint_token()}", name=name, end=end)
        if tell_progress is None:
            return await self._run_in_thread(job, run)
        telling = asyncio.ensure_future(self._tell_progress(run, tell_progress))
        try:
            return await self._run_in_thread(job, run)
        finally:
            telling.cancel()
            await asyncio.wait({telling})

    async def _tell_progress(self, job: _Job, tell_progress: TellProgress) -> None:
        """Tell the progress of a job for as long as nobody cancels this."""
        loop = asyncio.get_running_loop()
        phase, began_at = job.phase, loop.time()
        reader: Any = None
        while True:
            await asyncio.sleep(_PROGRESS_S)
            if phase != job.phase:
                phase, began_at = job.phase, loop.time()
            seconds = round(loop.time() - began_at, 1)
            usual_s = self._start_s if phase == "session" else 0.0
            progress = SparkProgress(phase=phase, seconds=seconds, usual_s=usual_s)
            if phase == "job" and (session := self._session) is not None:
                reader = reader or _load_module(_PROGRESS).JobProgressReader(session, job.tag)
                progress = await asyncio.to_thread(reader.read_progress, phase, seconds)
            await tell_progress(progress)

    async def _run_in_thread(self, job: Callable[["SparkSession"], T], run: _Job) -> T:
        session = await self._get_session()
        run.phase = "queue"
        future = asyncio.wrap_future(self._get_threads().submit(_run_tagged_job, job, session, run))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            run.is_cancelled = True
            if run.end is not None:
                run.end()
            await self._interrupt_job(session, run, future)
            raise
        except Exception as problem:
            if await asyncio.to_thread(load_driver().is_alive, session, problem):
                raise
            await self._discard_session(session)
            text = f"the Spark session ended while '{run.name}' ran: {type(problem).__name__}"
            raise SparkLost(text) from problem

    async def spread_shares(
        self,
        cut: Callable[[int], list[bytes]],
        entry: Callable[..., Any],
        *,
        name: str,
        tell_progress: TellProgress | None = None,
    ) -> list[bytes]:
        """Run one job of as many partitions as `cut` gives for what runs at once.

        Raises as `run_job` does, and `SparkLost` for a job that failed, which ends all its
        partitions.

        `entry` is called on executors with the shares of a partition; what it yields comes back.
        """
        spreading = _load_module(_SPREADING)

        def spread_job(session: "SparkSession") -> list[bytes]:
            answers: list[bytes] = spreading.spread(
                session, cut(spreading.parallelism(session)), entry
            )
            return answers

        try:
            return await self.run_job(spread_job, name=name, tell_progress=tell_progress)
        except NoetlError:
            raise
        except Exception as problem:
            description = await asyncio.to_thread(load_driver().describe_problem, problem)
            raise SparkLost(f"'{name}' ended early: {description}") from problem

    async def warm_session(self) -> None:
        """Start the session before a task needs it, where that is wanted.

        What prevents it is told in the log.
        """
        if not self._options.is_prewarmed:
            return
        try:
            await self._get_session()
        except NoetlError as problem:
            log.warning("the Spark session did not start", error=str(problem))

    async def close(self) -> None:
        """Stop the session and its Java process."""
        async with self._opening:
            session, self._session = self._session, None
            if session is not None:
                await _run_bounded(lambda: load_driver().stop(session))
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None

    async def _get_session(self) -> "SparkSession":
        async with self._opening:
            if self._session is None:
                log.info("starting a Spark session", master=self._options.shown_address)
                began_at = asyncio.get_running_loop().time()
                self._session = await asyncio.to_thread(_start_session, self._options)
                self._start_s = round(asyncio.get_running_loop().time() - began_at, 1)
            return self._session

    async def _discard_session(self, session: "SparkSession") -> None:
        """Forget a dead session, so that the next job starts another one."""
        async with self._opening:
            if self._session is session:
                self._session = None
                log.warning("the Spark session ended", master=self._options.shown_address)
                await _run_bounded(lambda: load_driver().stop(session))

    async def _interrupt_job(
        self, session: "SparkSession", job: _Job, future: asyncio.Future[Any]
    ) -> None:
        """Cancel a job's operations until its thread has come back, or for a bounded time."""
        for _ in range(_INTERRUPTS_MAX):
            # A job may begin its next operation just after one was interrupted.
            await asyncio.to_thread(load_driver().cancel_operations, session, job.tag)
            ended_futures, _ = await asyncio.wait({future}, timeout=_INTERRUPT_S)
            if ended_futures:
                # How a cancelled job ended interests nobody, but someone has to look.
                log.debug(
                    "Spark job cancelled", job=job.name, error=type(future.exception()).__name__
                )
                return
        log.warning("a cancelled Spark job still runs", job=job.name)

    def _get_threads(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(
                max_workers=self._options.jobs_max, thread_name_prefix="spark-job"
            )
        return self._threads


@asynccontextmanager
async def open_spark_session(options: SessionOptions) -> AsyncIterator[SharedSparkSession]:
    """Hold a session that is started when it is first needed; its folder goes away with it."""
    spark_session = SharedSparkSession(options)
    if options.problem:
        log.warning("Spark tasks will fail", error=options.problem)
    try:
        yield spark_session
    finally:
        await spark_session.close()
        await asyncio.to_thread(shutil.rmtree, options.folder, ignore_errors=True)


def load_driver() -> Any:
    """Load what knows Spark; raises `SparkUnavailable` where it is not installed."""
    return _load_module(_DRIVER)


def _load_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as problem:
        text = "Spark is not installed here: install noetl-worker[spark]"
        raise SparkUnavailable(text) from problem


def _start_session(options: SessionOptions) -> "SparkSession":
    session: SparkSession = load_driver().start(options)
    return session


def _run_tagged_job(job: Callable[["SparkSession"], T], session: "SparkSession", run: _Job) -> T:
    """Run a job under its own tag; the tag is this thread's."""
    if run.is_cancelled:
        raise CancelledError
    run.phase = "job"
    load_driver().mark_operations(session, run.tag, name=run.name)
    try:
        return job(session)
    finally:
        load_driver().unmark_operations(session, run.tag)


async def _run_bounded(call: Callable[[], None]) -> None:
    """Run a closing call in a thread, and do not wait for it longer than it deserves."""
    try:
        async with asyncio.timeout(_CLOSE_S):
            await asyncio.to_thread(call)
    except TimeoutError:
        log.warning("Spark did not stop in time")
