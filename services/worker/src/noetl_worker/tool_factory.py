"""Opens the tools of a worker, and the credential vault that they share."""

import asyncio
import ctypes
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from msgspec import Struct

from noetl_chassis import computation_deadline, redaction
from noetl_chassis.clock import Clock
from noetl_chassis.observability.connection_gauges import TASKS, show_connection_peaks
from noetl_chassis.seals.credential_seal import CredentialSealer
from noetl_playbook.templates import render_limits
from noetl_storage.ports.ledger_ports import Buckets, Payloads
from noetl_storage.ports.payload_ports import NearPayloads
from noetl_storage.process import scratch
from noetl_storage.process.lazy_import import LazyModule
from noetl_worker import wiring
from noetl_worker.domain.secret_mask import SecretMask
from noetl_worker.keychain.credential_vault import CredentialVault
from noetl_worker.keychain.entries import EntrySources
from noetl_worker.keychain.keychain import EntryCache, Keyring
from noetl_worker.keychain.tokens import BearerTokens
from noetl_worker.payloads.payload_retry import retry_store_call
from noetl_worker.settings import Settings, list_own_secrets, set_variables
from noetl_worker.spark.session import SharedSparkSession, open_spark_session
from noetl_worker.tools import Tools
from noetl_worker.tools.calls import child_process
from noetl_worker.tools.calls.call_datasets import CallDatasets
from noetl_worker.tools.calls.child_process import CapturedOutput, OutputTooLong, ProcessLaunch
from noetl_worker.tools.calls.references import ReferenceReader
from noetl_worker.tools.calls.work_folder import PathLocks, WorkFolder, open_work_folder
from noetl_worker.tools.container.container_tool import ContainerTool, Handover
from noetl_worker.tools.container.orphan_sweep import (
    OrphanSweep,
    build_process_owner,
    hold_sweep,
)
from noetl_worker.tools.credential_test.tool import CredentialTool
from noetl_worker.tools.deferred_tool import DeferredTool
from noetl_worker.tools.http.http_tool import HttpTool, open_http
from noetl_worker.tools.http.web_files import HttpFiles
from noetl_worker.tools.nats.nats_tool import open_nats
from noetl_worker.tools.postgres.postgres_tool import PostgresTool, open_postgres
from noetl_worker.tools.python.environments import PackageEnvironments
from noetl_worker.tools.python.python_tool import PythonTool, open_python
from noetl_worker.tools.scripts.bucket_scripts import BucketScripts
from noetl_worker.tools.scripts.script_loader import ScriptLoader
from noetl_worker.tools.shell import ShellTool
from noetl_worker.tools.spark.code_process import (
    SparkCode,
    open_code_processes,
)
from noetl_worker.workspace.checkout import Checkout
from noetl_worker.workspace.file_lender import FileLender
from noetl_worker.workspace.workspaces import Workspaces, open_workspaces

if TYPE_CHECKING:
    import pyarrow as pa

    from noetl_worker.tools import artifact
    from noetl_worker.tools.duckdb import duckdb_tool, inputs
    from noetl_worker.tools.spark import grant_maker, spark_inputs, spark_tool
    from noetl_worker.tools.transfer import (
        dataset_target,
        spark_mover,
        stream_tables,
        transfer_tool,
    )
else:
    pa = LazyModule("pyarrow")
    artifact = LazyModule("noetl_worker.tools.artifact")
    duckdb_tool = LazyModule("noetl_worker.tools.duckdb.duckdb_tool")
    inputs = LazyModule("noetl_worker.tools.duckdb.inputs")
    grant_maker = LazyModule("noetl_worker.tools.spark.grant_maker")
    spark_inputs = LazyModule("noetl_worker.tools.spark.spark_inputs")
    spark_tool = LazyModule("noetl_worker.tools.spark.spark_tool")
    dataset_target = LazyModule("noetl_worker.tools.transfer.dataset_target")
    spark_mover = LazyModule("noetl_worker.tools.transfer.spark_mover")
    stream_tables = LazyModule("noetl_worker.tools.transfer.stream_tables")
    transfer_tool = LazyModule("noetl_worker.tools.transfer.transfer_tool")

# The number of the option in malloc.h.
_MALLOC_MMAP_THRESHOLD = -3
_LARGE_BLOCK_BYTES = 1024 * 1024
_INSTALLER_GRACE_S = 2.0
# A worker gives back within these seconds what did not end while it drained.
_GIVE_BACK_S = 60.0
_INSTALLER_OUTPUT_BYTES_MAX = 1024 * 1024

log = structlog.get_logger(__name__)


class _TaskFolders(Struct, frozen=True, kw_only=True):
    """Where files of tasks lie on this machine."""

    organizations: WorkFolder
    workspaces: Workspaces
    python_homes: Path
    shell_homes: Path
    python_environments: Path
    spark: Path


@contextmanager
def _open_folders(
    config: Settings, references: ReferenceReader, mask: SecretMask, clock: Clock
) -> Iterator[_TaskFolders]:
    """Hold the folders of files while the block runs."""
    with (
        open_work_folder(config.work_directory) as organizations,
        open_workspaces(
            references_=references,
            organizations=organizations,
            mask=mask,
            clock=clock,
            limits=wiring.build_workspace_limits(config),
        ) as workspaces,
        scratch.hold_scratch_folder("python") as python_homes,
        scratch.hold_scratch_folder("shell") as shell_homes,
        scratch.hold_scratch_folder("environments") as python_environments,
        scratch.hold_scratch_folder("spark", root=organizations.root) as spark,
    ):
        yield _TaskFolders(
            organizations=organizations,
            workspaces=workspaces,
            python_homes=python_homes,
            shell_homes=shell_homes,
            python_environments=python_environments,
            spark=spark,
        )


@asynccontextmanager
async def open_tools(
    config: Settings,
    payloads: Payloads,
    clock: Clock,
    *,
    near: NearPayloads | None = None,
    stop: asyncio.Event | None = None,
) -> AsyncIterator[tuple[Tools, SecretMask]]:
    """Hold every tool open while the block runs; `near` reads payloads where they lie.

    A tool that can do nothing more sets `stop`, which ends the worker.
    """
    _return_large_blocks()
    mask = SecretMask(own=list_own_secrets(config))
    sealer = CredentialSealer(config.secret_key)
    vault = CredentialVault(
        objects=payloads, ask_again=retry_store_call, sealer=sealer, mask=mask, clock=clock
    )
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        stack.enter_context(redaction.add_masker(mask.mask_text))
        _guard_renders(stack)
        _sweep_scratch_folders(config.work_directory)
        references = ReferenceReader(payloads)
        folders = stack.enter_context(_open_folders(config, references, mask, clock))
        locks = PathLocks(folders.organizations)
        http = await enter(_open_http_tool(config, vault, payloads, clock))
        buckets = await enter(wiring.open_bucket_store())
        scripts = _build_script_loader(config, http, BucketScripts(buckets, vault, references))
        datasets = CallDatasets(vault=vault, clock=clock, web=HttpFiles(http, vault))
        postgres = await enter(_open_postgres_tool(config, vault, datasets, references, scripts))
        show_connection_peaks(postgres.peaks, database=TASKS)
        duckdb = _defer_duckdb_tool(
            *(config, vault, datasets, references, scripts),
            locks=locks,
            postgres=postgres,
            near=near,
        )
        spark_session = await enter(_open_session(config, folders))
        environments = _build_environments(config, folders, mask)
        code = await enter(_open_spark_code(config, folders, environments, mask))
        spark = DeferredTool(
            lambda: _build_spark_tool(
                config,
                spark_session,
                _build_spark_reader(config, references, vault, datasets),
                postgres,
                scripts=scripts,
                code=code,
                grants=_build_grant_maker(config, vault, folders, clock),
            )
        )
        tools = Tools(
            http=http,
            postgres=postgres,
            python=await enter(_open_python_tool(config, scripts, folders, environments, mask)),
            duckdb=duckdb,
            artifact=_defer_artifact_tool(references, buckets, http, vault, mask),
            spark=spark,
            transfer=_defer_transfer_tool(
                *(http, postgres, duckdb, spark),
                datasets=datasets,
                references=references,
                locks=locks,
            ),
            shell=_build_shell_tool(config, scripts, clock, folders),
            container=await enter(_open_container_tool(config, scripts, mask, vault, clock, stop)),
            nats=await enter(open_nats(vault=vault, sends_traceparent=config.send_traceparent)),
            credential_test=CredentialTool(vault=vault, http=http, clock=clock),
            spark_session=spark_session,
            keyring=_build_keyring(config, vault, http.tokens, sealer, clock),
            lender=FileLender(folders.workspaces),
        )
        yield tools, mask


def _guard_renders(stack: AsyncExitStack) -> None:
    """Hold templates to their limits until the stack ends."""
    timer = stack.enter_context(computation_deadline.own_deadline_timer())
    stack.enter_context(render_limits.install_guard(timer))


def _return_large_blocks() -> None:
    """Let the C library give large blocks back as they are freed.

    Else it raises the size from which it does so with each that is freed, and blocks of batches,
    which come and go in several threads, leave heaps of holes: 1.6 GB instead of 0.75 GB for a
    transfer of CSV.
    """
    # What a table has given back is the machine's again at once. Arrow reads it when it is loaded.
    set_variables({"ARROW_DEFAULT_MEMORY_POOL": "system"})
    if "pyarrow" in sys.modules:
        pa.set_memory_pool(pa.system_memory_pool())
    # Other libraries than that of GNU have no such setting, and do not raise the size.
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_MALLOC_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES)


def _sweep_scratch_folders(work_directory: str) -> None:
    """Remove the folders of processes that were killed on this machine."""
    scratch_folders = scratch.sweep_scratch_folders()
    if work_directory and Path(work_directory).is_dir():
        scratch_folders += scratch.sweep_scratch_folders(Path(work_directory))
    if scratch_folders:
        log.info("folders of killed processes removed", folders=scratch_folders)


def _open_http_tool(
    config: Settings, vault: CredentialVault, payloads: Payloads, clock: Clock
) -> AbstractAsyncContextManager[HttpTool]:
    return open_http(
        limits=wiring.build_http_limits(config), vault=vault, payloads=payloads, clock=clock
    )


def _open_session(
    config: Settings, folders: _TaskFolders
) -> AbstractAsyncContextManager[SharedSparkSession]:
    return open_spark_session(wiring.build_spark_options(config, folders.spark))


@asynccontextmanager
async def _open_spark_code(
    config: Settings, folders: _TaskFolders, environments: PackageEnvironments, mask: SecretMask
) -> AsyncIterator[SparkCode]:
    limits = wiring.build_code_limits(config)
    async with open_code_processes(limits, folders.python_homes) as processes:
        yield SparkCode(processes=processes, environments=environments, mask=mask)


def _build_script_loader(config: Settings, http: HttpTool, buckets: BucketScripts) -> ScriptLoader:
    return ScriptLoader(directory=config.script_directory, http=http, buckets=buckets)


def _open_python_tool(
    config: Settings,
    scripts: ScriptLoader,
    folders: _TaskFolders,
    environments: PackageEnvironments,
    mask: SecretMask,
) -> AbstractAsyncContextManager[PythonTool]:
    return open_python(
        limits=wiring.build_python_limits(config),
        scripts=scripts,
        directory=folders.python_homes,
        folders=config.task_folders,
        make_checkout=Checkout,
        environments=environments,
        mask=mask,
    )


def _build_environments(
    config: Settings, folders: _TaskFolders, mask: SecretMask
) -> PackageEnvironments:
    return PackageEnvironments(
        options=wiring.build_environment_options(config),
        root=folders.python_environments,
        mask=mask,
        run_command=_run_installer,
    )


async def _run_installer(
    command: tuple[str, ...], environ: dict[str, str], directory: Path
) -> tuple[int, str]:
    """Run an installer to its end; one that says too much is ended, and has failed."""
    launch = ProcessLaunch(
        command=command,
        environ=environ,
        directory=directory,
        stdin=b"",
        grace_s=_INSTALLER_GRACE_S,
    )
    captured = CapturedOutput(_INSTALLER_OUTPUT_BYTES_MAX)
    try:
        code = await child_process.run_process(launch, captured)
    except OutputTooLong:
        code = 1
    return code, captured.stderr.decode(errors="replace")


def _build_shell_tool(
    config: Settings, scripts: ScriptLoader, clock: Clock, folders: _TaskFolders
) -> ShellTool:
    return ShellTool(
        limits=wiring.build_shell_limits(config),
        directory=folders.shell_homes,
        folders=config.task_folders,
        scripts=scripts,
        clock=clock,
    )


@asynccontextmanager
async def _open_container_tool(
    config: Settings,
    scripts: ScriptLoader,
    mask: SecretMask,
    vault: CredentialVault,
    clock: Clock,
    stop: asyncio.Event | None,
) -> AsyncIterator[ContainerTool]:
    """Hold the tool; while it is open, containers of killed workers are looked for."""
    runtime = wiring.open_container_runtime(config)
    async with AsyncExitStack() as stack:
        owner = ""
        if runtime is not None:
            stack.push_async_callback(runtime.close)
            owner = build_process_owner(
                stack.enter_context(scratch.hold_scratch_folder("containers"))
            )
            sweep = OrphanSweep(runtime, owner=owner, clock=clock)
            await stack.enter_async_context(hold_sweep(sweep))
        yield ContainerTool(
            runtime=runtime,
            limits=wiring.build_container_limits(config),
            scripts=scripts,
            mask=mask,
            vault=vault,
            clock=clock,
            owner=owner,
            handover=Handover(stop or asyncio.Event(), wait_s=config.drain_s + _GIVE_BACK_S),
        )


def _open_postgres_tool(
    config: Settings,
    vault: CredentialVault,
    datasets: CallDatasets,
    references: ReferenceReader,
    scripts: ScriptLoader,
) -> AbstractAsyncContextManager[PostgresTool]:
    return open_postgres(
        vault=vault,
        scripts=scripts,
        references_=references,
        room=wiring.build_postgres_limits(config),
        datasets=datasets,
    )


def _defer_duckdb_tool(
    config: Settings,
    vault: CredentialVault,
    datasets: CallDatasets,
    references: ReferenceReader,
    scripts: ScriptLoader,
    *,
    locks: PathLocks,
    postgres: PostgresTool,
    near: NearPayloads | None,
) -> "DeferredTool[duckdb_tool.DuckdbTool]":
    return DeferredTool(
        lambda: duckdb_tool.DuckdbTool(
            datasets=datasets,
            vault=vault,
            inputs=inputs.InputReader(
                references_=references,
                postgres=postgres,
                in_place=inputs.StoredTables(near),
                datasets_=datasets,
            ),
            scripts=scripts,
            references_=references,
            locks=locks,
            limits=wiring.build_duckdb_limits(config),
        )
    )


def _defer_artifact_tool(
    references: ReferenceReader,
    buckets: Buckets,
    http: HttpTool,
    vault: CredentialVault,
    mask: SecretMask,
) -> "DeferredTool[artifact.ArtifactTool]":
    return DeferredTool(
        lambda: artifact.ArtifactTool(
            references_=references, buckets=buckets, http=http, vault=vault, mask=mask
        )
    )


def _defer_transfer_tool(
    http: HttpTool,
    postgres: PostgresTool,
    duckdb: "DeferredTool[duckdb_tool.DuckdbTool]",
    spark: "DeferredTool[spark_tool.SparkTool]",
    *,
    datasets: CallDatasets,
    references: ReferenceReader,
    locks: PathLocks,
) -> "DeferredTool[transfer_tool.TransferTool]":
    return DeferredTool(
        lambda: transfer_tool.TransferTool(
            http=http,
            postgres=postgres,
            duckdb=duckdb.open_once(),
            mover=spark_mover.SparkMover(spark=spark.open_once(), postgres=postgres),
            datasets=dataset_target.DatasetEnds(datasets),
            references_=references,
            locks=locks,
        )
    )


def _build_grant_maker(
    config: Settings, vault: CredentialVault, folders: _TaskFolders, clock: Clock
) -> "grant_maker.GrantMaker":
    options = wiring.build_grant_options(config, folders.spark)
    return grant_maker.GrantMaker(vault=vault, options=options, clock=clock)


def _build_spark_reader(
    config: Settings,
    references: ReferenceReader,
    vault: CredentialVault,
    datasets: CallDatasets,
) -> "spark_inputs.SparkInputReader":
    return spark_inputs.SparkInputReader(
        references_=references, vault=vault, datasets_=datasets, master=config.spark_master
    )


def _build_spark_tool(
    config: Settings,
    spark_session: SharedSparkSession,
    reader: "spark_inputs.SparkInputReader",
    postgres: PostgresTool,
    *,
    scripts: ScriptLoader,
    code: SparkCode,
    grants: "grant_maker.GrantMaker",
) -> "spark_tool.SparkTool":
    return spark_tool.SparkTool(
        spark_session=spark_session,
        references_=reader.references,
        inputs=reader,
        scripts=scripts,
        tables=stream_tables.PostgresTables(postgres=postgres, inputs=reader),
        limits=wiring.build_spark_limits(config),
        code=code,
        grants=grants,
    )


def _build_keyring(
    config: Settings,
    vault: CredentialVault,
    tokens: BearerTokens,
    sealer: CredentialSealer,
    clock: Clock,
) -> Keyring:
    return Keyring(
        sources=EntrySources(
            vault=vault,
            tokens=tokens,
            environ=config.secret_env,
            folder=Path(config.secret_folder) if config.secret_folder else None,
        ),
        sealer=sealer,
        entry_cache=EntryCache(),
        clock=clock,
        template_env=config.template_env,
    )
