"""Runs one playbook on an event loop of its own while the terminal watches."""

import asyncio
import queue
import shlex
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from noetl_chassis import telemetry
from noetl_chassis.settings import AUTH, SettingsError
from noetl_chassis.task_group import open_task_group
from noetl_cli import terminal_output
from noetl_cli.errors import CliError, ExitCode
from noetl_cli.files.playbook_file import PlaybookFile
from noetl_cli.files.run_request import RunFile, RunRequest
from noetl_cli.identity import server_origin, token_store
from noetl_cli.identity.token_store import SignInRecord
from noetl_cli.local import system
from noetl_cli.local.history import HistoryWriter, get_history_folder
from noetl_cli.local.system import LocalSystem, ServiceSettings
from noetl_cli.planner.execution_logs import format_log_line
from noetl_cli.stack.home_folder import stack_secrets
from noetl_cli.stack.processes import loopback
from noetl_cli.stack.processes.loopback import LOOPBACK
from noetl_contracts import codec
from noetl_contracts.commands.task_metrics import StepProgress
from noetl_contracts.errors import NoetlError
from noetl_contracts.ids import ExecutionId
from noetl_planner.api.catalog import catalog_entries, playbooks, states
from noetl_planner.api.catalog.playbooks import Registered
from noetl_planner.api.credentials import credentials
from noetl_planner.api.credentials.credentials import PutBody
from noetl_planner.api.executions import control_requests, input_files, start_requests
from noetl_planner.api.executions.start_requests import ExecuteBody
from noetl_planner.api.history import history_replay, results
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.services import ApiServices
from noetl_planner.api.watch.event_stream import END, PROGRESS, EventStream, HistoryFollower
from noetl_planner.api.watch.log_chunks import LogChunks, LogFollower
from noetl_planner.api.watch.log_lines import view_lines, view_problem
from noetl_playbook.source.problems import Level

# The services wait when the terminal is slower than they are.
EVENTS_WAITING_MAX = 1000
LOOK_S = 0.2
START_S = 30.0
STOP_S = 30.0
# So much of the files that a run takes with it is stored in a second, on a slow disk.
STORED_BYTES_S = 5 * 1024 * 1024
ANSWER_S = 60.0

T = TypeVar("T")

EventView = dict[str, Any]


class LogLine(str):
    """A line that a task wrote, as it is shown."""

    __slots__ = ()


# What the terminal is handed.
RunView = EventView | StepProgress | LogLine


class LocalRun:
    """One execution in a thread; `events` ends when the execution does."""

    def __init__(
        self, run_request: RunRequest, configs: ServiceSettings, history_folder: Path
    ) -> None:
        self._run_request = run_request
        self._configs = configs
        self._events: queue.Queue[RunView | None] = queue.Queue(EVENTS_WAITING_MAX)
        self._history_folder = history_folder
        self._history: HistoryWriter | None = None
        self.has_history = True
        self._id_future: Future[ExecutionId] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._system: LocalSystem | None = None
        self._has_left = threading.Event()
        self._thread = threading.Thread(target=self._run_thread, name="noetl-local")

    def start(self) -> ExecutionId:
        """Start the services and the execution; raises what keeps them from starting."""
        self._thread.start()
        size_bytes = sum(file.size_bytes for file in self._run_request.files)
        return self._id_future.result(START_S + size_bytes / STORED_BYTES_S)

    def events(self, tell: Callable[[str], None]) -> Iterator[EventView | StepProgress | None]:
        """Yield events in order, and None whenever there is time to look at the clock.

        What tasks write is told as it comes: it goes with the run's files, so nobody asks later.
        """
        while True:
            try:
                view = self._events.get(timeout=LOOK_S)
            except queue.Empty:
                if not self._thread.is_alive():
                    return
                yield None
                continue
            if view is None:
                return
            if isinstance(view, LogLine):
                tell(view)
            else:
                yield view

    def cancel(self) -> None:
        """Ask the execution to stop."""
        if self._loop is None or self._system is None or not self._thread.is_alive():
            return
        cancelling = control_requests.request_cancel(
            self._system.services, self._id_future.result(0), "cancelled at the terminal"
        )
        asyncio.run_coroutine_threadsafe(cancelling, self._loop).result(LOOK_S * 10)

    def list_results(self) -> dict[str, Any]:
        """List the results as the API does; for as long as nobody has left."""
        listed = results.list_step_results(self._get_system().services, self._id_future.result(0))
        result_list: dict[str, Any] = codec.to_builtins(self._run_on_loop(listed))
        return result_list

    def get_result(self, step: str, *, offset: int, limit: int) -> dict[str, Any]:
        """Read a window of a step's result as the API does; raises `CliError`."""
        services, execution_id = self._get_system().services, self._id_future.result(0)
        window = results.get_step_result(services, execution_id, step, offset=offset, limit=limit)
        result: dict[str, Any] = codec.to_builtins(self._run_on_loop(window))
        return result

    def build_save_command(self, step: str, file: Path) -> str:
        """Write the command that saves the result of another run: this one's goes away with it."""
        del step
        return f"noetl run FILE -r local --save {shlex.quote(str(file))}"

    def stop_services(self) -> None:
        """Stop the services and wait for them."""
        self._has_left.set()
        if self._loop is not None and self._system is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._system.process.stop.set)
        self._thread.join(STOP_S)
        if self._history is not None:
            self._history.close()

    def _get_system(self) -> LocalSystem:
        assert self._system is not None, "an execution has begun"
        return self._system

    def _run_on_loop(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run something on the services' loop; raises `CliError` where the API has a problem."""
        assert self._loop is not None, "an execution has begun"
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(ANSWER_S)
        except ApiError as error:
            raise CliError(error.detail, way_out=error.hint or "") from error
        except TimeoutError as error:
            raise CliError(f"The services did not answer within {ANSWER_S:g} s.") from error

    def _run_thread(self) -> None:
        try:
            asyncio.run(self._run_services())
        except BaseException as error:
            if self._id_future.done():
                raise
            self._id_future.set_exception(error)

    async def _run_services(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with system.open_system(self._configs) as opened, open_task_group() as tasks:
            self._system = opened
            listens = self._run_request.listens_at is not None
            tasks.create_task(system.run_services(opened, listens=listens))
            try:
                execution_id = await self._start_execution(opened)
                logs = LogFollower(LogChunks(opened.services, execution_id), opened.services)
                async with open_task_group() as readers:
                    reading = readers.create_task(self._follow_logs(logs))
                    await self._follow_events(
                        HistoryFollower(opened.services, execution_id), logs, reading
                    )
                await self._build_queue_view(None)
                # Results and history are read until the terminal leaves.
                await opened.process.stop.wait()
            finally:
                opened.process.stop.set()

    async def _start_execution(self, opened: LocalSystem) -> ExecutionId:
        for name, fields in self._run_request.credentials.items():
            sealed = PutBody(
                name=name,
                type=str(fields.get("type", "generic")),
                data={key: value for key, value in fields.items() if key != "type"},
            )
            await credentials.keep_credential(opened.services, sealed)
        for other in self._run_request.others:
            await _register_playbooks(opened.services, other)
        playbooks = await _register_playbooks(opened.services, self._run_request.source)
        files = [await _store_file(opened.services, file) for file in self._run_request.files]
        body = ExecuteBody(
            path=playbooks.path,
            version=playbooks.version,
            workload=self._run_request.inputs,
            files=files,
        )
        accepted = await start_requests.execute_playbook(opened.services, body, None)
        for warning in accepted.warnings or ():
            terminal_output.print_note(f"warning: {warning}")
        entry = await catalog_entries.get_playbook_entry(
            opened.services, playbooks.path, playbooks.version
        )
        if states.list_increments(entry):
            terminal_output.print_note(
                "warning: states end with a run in this process: it reads from the initial value"
            )
        self._open_history(accepted.execution_id)
        self._id_future.set_result(accepted.execution_id)
        return accepted.execution_id

    async def _follow_events(
        self, following: HistoryFollower, logs: LogFollower, reading: "asyncio.Task[None]"
    ) -> None:
        hints = self._get_system().services.messages.hints
        async for page in EventStream(following, hints=hints).iterate_messages():
            if following.is_over:
                # Nobody looks at lines that come behind the last event.
                logs.has_ended.set()
                await asyncio.wait({reading})
            views = [
                codec.decode_as(message.data, EventView)
                for message in page
                if isinstance(message.data, str) and message.event not in {END, PROGRESS}
            ]
            for message in page:
                if message.event == PROGRESS:
                    await self._build_queue_view(codec.decode_as(str(message.data), StepProgress))
            await self._append_history(views)
            for view in views:
                await self._build_queue_view(view)

    async def _follow_logs(self, logs: LogFollower) -> None:
        async for log_chunk in logs.read_chunks():
            if log_chunk is None:
                continue
            for line in (*view_problem(log_chunk), *view_lines(log_chunk)):
                await self._build_queue_view(LogLine(format_log_line(codec.to_builtins(line))))

    async def _append_history(self, views: list[EventView]) -> None:
        """Keep events in the history; a disk that takes no more ends the history, not the run."""
        if self._history is None or not views:
            return
        first, last = views[0]["version"], views[-1]["version"]
        page = await self._get_system().services.history.audit.read_stored_events(
            self._id_future.result(0), after_version=first - 1, events_max=last - first + 1
        )
        try:
            self._history.append(views, map(history_replay.redact_event, page), version=last)
        except OSError as error:
            self._stop_history(error)

    def _open_history(self, execution_id: ExecutionId) -> None:
        try:
            self._history = HistoryWriter(self._history_folder, execution_id)
        except OSError as error:
            self._stop_history(error)

    def _stop_history(self, error: OSError) -> None:
        self._history = None
        self.has_history = False
        reason = error.strerror or str(error)
        terminal_output.print_note(
            f"The history of this run is not kept in {self._history_folder}: {reason}"
        )

    async def _build_queue_view(self, view: RunView | None) -> None:
        while not self._has_left.is_set():
            try:
                self._events.put_nowait(view)
            except queue.Full:
                await asyncio.sleep(LOOK_S)
            else:
                return


@contextmanager
def open_run(
    run_request: RunRequest, environ: dict[str, str]
) -> Iterator[tuple[LocalRun, ExecutionId]]:
    """Run a playbook in this process; its payloads go away with it."""
    telemetry.configure_logs(
        service=system.NAME, instance=system.NAME, log_format="console", log_level="error"
    )
    environ = {**environ, **_listen_variables(run_request.listens_at)}
    with (
        keep_listening_token(environ, run_request.listens_at) as token,
        tempfile.TemporaryDirectory(prefix="noetl-local-") as folder,
    ):
        environ |= token
        try:
            configs = system.load_settings(environ, Path(folder))
        except SettingsError as error:
            raise CliError(str(error), exit_code=ExitCode.USAGE) from error
        running = LocalRun(run_request, configs, get_history_folder(environ))
        try:
            yield running, _start_run(running)
        finally:
            running.stop_services()


async def _register_playbooks(services: ApiServices, file: PlaybookFile) -> Registered:
    """Register the playbooks of a file."""
    return await playbooks.register_text(
        services, file.text, level=Level.TOLERANT, scripts=file.script_by_name or None
    )


async def _store_file(services: ApiServices, file: RunFile) -> input_files.GivenFile:
    """Store the chunks of a file that the run takes with it, and describe the file."""
    digests = [await input_files.store_chunk(services, data) for data in file.read_chunks()]
    return codec.convert_value(file.describe_file(digests), input_files.GivenFile)


def _listen_variables(port: int | None) -> dict[str, str]:
    """Say where the API listens and answers are sent; nowhere unless it was asked for."""
    if port is None:
        return {}
    if not loopback.is_port_free(port):
        raise CliError(
            f"Something listens at port {port} already.",
            way_out="Name another one: --listen PORT",
            exit_code=ExitCode.USAGE,
        )
    return {
        "NOETL_PLANNER_HTTP_HOST": loopback.LOOPBACK,
        "NOETL_PLANNER_HTTP_PORT": str(port),
        "NOETL_WORKER_CALLBACK_URL": f"http://{loopback.LOOPBACK}:{port}",
    }


@contextmanager
def keep_listening_token(environ: dict[str, str], port: int | None) -> Iterator[dict[str, str]]:
    """Keep a token for the API at a port while the block runs; yield what the API is told of it."""
    if port is None or environ.get(AUTH, "on") != "on":
        yield {}
        return
    token = stack_secrets.make_owner_token()
    origin = server_origin.parse_origin(f"http://{LOOPBACK}:{port}")
    store = token_store.open_token_store(environ)
    with store.hold_lock():
        store.put_record(origin, SignInRecord(api_key=token))
    try:
        yield {"NOETL_PLANNER_OWNER_TOKEN_SHA256": codec.digest_hex(token.encode())}
    finally:
        with store.hold_lock():
            store.remove_record(origin)


def _start_run(running: LocalRun) -> ExecutionId:
    try:
        return running.start()
    except ApiError as error:
        raise CliError(error.detail, way_out=error.hint or "", exit_code=ExitCode.USAGE) from error
    except (NoetlError, TimeoutError) as error:
        raise CliError(f"The playbook could not be started: {error}") from error
