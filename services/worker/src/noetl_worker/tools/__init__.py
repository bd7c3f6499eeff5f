"""The tools: one file a kind, one signature."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Literal, Protocol, assert_never, get_args

from msgspec import Struct

from noetl_chassis.blocking_work import are_modules_loaded, load_modules, run_in_thread
from noetl_chassis.observability import tracing
from noetl_contracts.commands.command_work import Command
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.keychain.credential_vault import record_used_versions
from noetl_worker.keychain.keychain import Keyring
from noetl_worker.spark.session import SharedSparkSession
from noetl_worker.sql import lexer
from noetl_worker.tools import noop
from noetl_worker.tools.calls.call import Call, Outcome
from noetl_worker.tools.calls.call_spans import run_in_span
from noetl_worker.tools.container.container_tool import ContainerTool
from noetl_worker.tools.deferred_tool import DeferredTool, KindTool
from noetl_worker.tools.http.http_tool import HttpTool
from noetl_worker.tools.nats.nats_tool import NatsTool
from noetl_worker.tools.postgres.postgres_tool import PostgresTool
from noetl_worker.tools.python.python_tool import PythonTool
from noetl_worker.tools.shell import ShellTool

if TYPE_CHECKING:
    from noetl_worker.tools.artifact import ArtifactTool
    from noetl_worker.tools.duckdb.duckdb_tool import DuckdbTool
    from noetl_worker.tools.spark.spark_tool import SparkTool
    from noetl_worker.tools.transfer.transfer_tool import TransferTool

Kind = Literal[
    "http",
    "postgres",
    "python",
    "duckdb",
    "artifact",
    "transfer",
    "shell",
    "nats",
    "spark",
    "container",
    "noop",
    "credential_test",
]
KINDS: frozenset[str] = frozenset(get_args(Kind))
_KINDS_WITH_SQL = frozenset({"postgres", "duckdb", "spark", "transfer"})
_POSTGRES_MODULES = (
    "noetl_worker.tools.postgres.arrow_types",
    "noetl_worker.tools.postgres.query_output",
    "noetl_worker.datasets.batch_sink",
)
_KINDS_WITH_FILES = frozenset(
    {"artifact", "container", "duckdb", "python", "shell", "spark", "transfer"}
)


class FileLenderPort(Protocol):
    """Lends a task the files of its execution."""

    def run_with_files(
        self, call: Call, run: Callable[[Call], Awaitable[Outcome]]
    ) -> Awaitable[Outcome]:
        """Run one attempt that may use files."""

    def count_entries(self, command: Command) -> int:
        """Return how long the journal of an execution's files is known to be; 0 without one."""

    async def read_entries(self, command: Command) -> None:
        """Look how long the journal is; raises `ToolFailure`."""


class Tools(Struct, frozen=True, kw_only=True):
    """The opened tools of a worker, its Spark, and the keyring by which templates reach secrets."""

    http: HttpTool
    postgres: PostgresTool
    python: PythonTool
    shell: ShellTool
    container: ContainerTool
    nats: NatsTool
    spark: "DeferredTool[SparkTool]"
    duckdb: "DeferredTool[DuckdbTool]"
    artifact: "DeferredTool[ArtifactTool]"
    transfer: "DeferredTool[TransferTool]"
    credential_test: KindTool
    spark_session: SharedSparkSession
    keyring: Keyring
    lender: FileLenderPort

    def run(self, call: Call) -> Awaitable[Outcome]:
        """Run one attempt with the tool of its kind, and lend it files where it may use some."""
        return self._run_once(call) if call.auth is None else self._run_with_auth(call)

    async def _run_with_auth(self, call: Call) -> Outcome:
        """Run, and once more if the credential that was refused has been replaced since."""
        with record_used_versions() as used_versions:
            outcome = await self._run_once(call)
        if not _is_credential_refused(outcome):
            return outcome
        vault = self.keyring.sources.vault
        try:
            is_replaced = await vault.renew_credential(
                call.auth, call.site, used_versions=used_versions
            )
        except ToolFailure:
            # What the server said is why the task failed.
            return outcome
        return await self._run_once(call) if is_replaced else outcome

    def _run_once(self, call: Call) -> Awaitable[Outcome]:
        if tracing.are_spans_wanted() and call.kind != "noop":
            return run_in_span(call, self._run_untraced)
        return self._run_untraced(call)

    def _run_untraced(self, call: Call) -> Awaitable[Outcome]:
        if call.kind in _KINDS_WITH_SQL and not _is_ready(call.kind):
            return self._run_with_parser(call)
        if call.kind in _KINDS_WITH_FILES:
            return self.lender.run_with_files(call, self._run_by_kind)
        return self._run_by_kind(call)

    async def _run_with_parser(self, call: Call) -> Outcome:
        # On the loop, the first text of SQL would hold up every other task.
        await run_in_thread(lexer.load_dialects)
        if call.kind == "postgres":
            await load_postgres_modules()
        return await self._run_untraced(call)

    def _run_by_kind(self, call: Call) -> Awaitable[Outcome]:  # noqa: C901, PLR0912 - one arm per kind
        if call.kind not in KINDS:
            return _build_unsupported(call.kind)
        kind: Kind = call.kind  # type: ignore[assignment]  # membership was checked above
        match kind:
            case "http":
                return self.http.run(call)
            case "postgres":
                return self.postgres.run(call)
            case "python":
                return self.python.run(call)
            case "shell":
                return self.shell.run(call)
            case "nats":
                return self.nats.run(call)
            case "spark":
                return self.spark.run(call)
            case "container":
                return self.container.run(call)
            case "duckdb":
                return self.duckdb.run(call)
            case "artifact":
                return self.artifact.run(call)
            case "transfer":
                return self.transfer.run(call)
            case "noop":
                return noop.run_noop(call)
            case "credential_test":
                return self.credential_test.run(call)
            case _:
                assert_never(kind)


def _is_ready(kind: str) -> bool:
    """Tell whether the modules are loaded that a kind with SQL would load on the event loop."""
    is_loaded = kind != "postgres" or are_modules_loaded(*_POSTGRES_MODULES)
    return is_loaded and lexer.is_dialects_loaded()


async def load_postgres_modules() -> None:
    """Load what the postgres tool may need of Arrow and datasets, if nobody has done so."""
    await load_modules(*_POSTGRES_MODULES)


def _is_credential_refused(outcome: Outcome) -> bool:
    error = outcome.error
    return error is not None and (error.kind == "auth" or (error.code or "").startswith("PG_28"))


async def _build_unsupported(kind: str) -> Outcome:
    text = f"kind '{kind}' is not available: use {', '.join(sorted(KINDS))}"
    return Outcome(error=build_error("unsupported_tool", text))
