"""The tools, opened together with the vault that they share."""

from collections.abc import AsyncIterator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from pathlib import Path

import pyarrow as pa
import structlog
from msgspec import Struct

from noetl_chassis import deadline, redaction
from noetl_chassis.clock import Clock
from noetl_chassis.sealing import Sealer
from noetl_playbook.templates import rendering
from noetl_storage import scratch
from noetl_storage.ports import Payloads
from noetl_storage.tier_ports import Near
from noetl_worker import assembly
from noetl_worker.credential_probes.credential_tool import CredentialTool
from noetl_worker.domain.masking import Mask
from noetl_worker.keys.credential_vault import Vault
from noetl_worker.keys.entries import Sources
from noetl_worker.keys.keychain import Kept, Keyring
from noetl_worker.keys.tokens import Tokens
from noetl_worker.patience import patiently
from noetl_worker.settings import Settings
from noetl_worker.spark.session import Sparks, open_sparks
from noetl_worker.tools import Tools, processes
from noetl_worker.tools.artifact import ArtifactTool
from noetl_worker.tools.bucket_scripts import BucketScripts
from noetl_worker.tools.duckdb import DuckdbTool
from noetl_worker.tools.duckdb_inputs import InputReader
from noetl_worker.tools.http import HttpTool, open_http
from noetl_worker.tools.in_place import InPlace
from noetl_worker.tools.nats import open_nats
from noetl_worker.tools.path_locks import PathLocks
from noetl_worker.tools.postgres import PostgresTool, open_postgres
from noetl_worker.tools.processes import Captured, Launch, OutputTooLong
from noetl_worker.tools.python import PythonTool, open_python
from noetl_worker.tools.references import References
from noetl_worker.tools.scripts import Scripts
from noetl_worker.tools.shell import ShellTool
from noetl_worker.tools.spark import SparkTool
from noetl_worker.tools.spark_inputs import SparkInputs
from noetl_worker.tools.transfer import TransferTool
from noetl_worker.tools.transfer_spark import SparkMover
from noetl_worker.tools.workplace import WorkFolder, open_work_folder
from noetl_worker.user_python.environments import Environments
from noetl_worker.workspace.checkout import Checkout
from noetl_worker.workspace.file_lender import FileLender
from noetl_worker.workspace.workspaces import Workspaces, open_workspaces

_INSTALLER_GRACE_S = 2.0
_INSTALLER_OUTPUT_BYTES_MAX = 1024 * 1024

log = structlog.get_logger(__name__)


class _Folders(Struct, frozen=True, kw_only=True):
    """Where files of tasks lie on this machine."""

    organizations: WorkFolder
    workspaces: Workspaces
    python_homes: Path
    shell_homes: Path
    python_environments: Path

    @property
    def hidden(self) -> tuple[Path, ...]:
        """Return the folders of which user code sees its own part alone."""
        roots = (self.workspaces.root, self.organizations.root)
        return (*roots, self.python_homes, self.shell_homes, self.python_environments)


@contextmanager
def _folders(
    config: Settings, references: References, mask: Mask, clock: Clock
) -> Iterator[_Folders]:
    """Hold the folders of files while the block runs."""
    with (
        open_work_folder(config.work_directory) as organizations,
        open_workspaces(
            references_=references,
            organizations=organizations,
            mask=mask,
            clock=clock,
            limits=assembly.workspace_limits(config),
        ) as workspaces,
        scratch.own_folder("python") as python_homes,
        scratch.own_folder("shell") as shell_homes,
        scratch.own_folder("environments") as python_environments,
    ):
        yield _Folders(
            organizations=organizations,
            workspaces=workspaces,
            python_homes=python_homes,
            shell_homes=shell_homes,
            python_environments=python_environments,
        )


@asynccontextmanager
async def open_tools(
    config: Settings, payloads: Payloads, clock: Clock, *, near: Near | None = None
) -> AsyncIterator[tuple[Tools, Mask]]:
    """Hold every tool open while the block runs; `near` reads payloads where they lie."""
    # What a table has given back is the machine's again at once.
    pa.set_memory_pool(pa.system_memory_pool())
    mask = Mask()
    sealer = Sealer(config.secret_key)
    vault = Vault(objects=payloads, ask_again=patiently, sealer=sealer, mask=mask, clock=clock)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        stack.enter_context(redaction.masking(mask.text))
        stack.enter_context(rendering.guarded_by(stack.enter_context(deadline.watching())))
        _sweep()
        references = References(payloads)
        folders = stack.enter_context(_folders(config, references, mask, clock))
        locks = PathLocks(folders.organizations)
        http = await enter(
            open_http(
                limits=assembly.http_limits(config), vault=vault, payloads=payloads, clock=clock
            )
        )
        buckets = await enter(assembly.open_bucket_store())
        scripts = _scripts(config, http, BucketScripts(buckets, vault, references))
        postgres = await enter(_postgres(config, vault, references, scripts))
        inputs = InputReader(references_=references, postgres=postgres, in_place=InPlace(near))
        duckdb = DuckdbTool(
            vault=vault,
            inputs=inputs,
            scripts=scripts,
            references_=references,
            locks=locks,
            limits=assembly.duckdb_limits(config),
        )
        sparks = await enter(
            open_sparks(assembly.spark_options(config, folders.organizations.root))
        )
        reads = SparkInputs(references_=references, vault=vault)
        spark = _spark(config, sparks, reads, references=references, scripts=scripts)
        tools = Tools(
            http=http,
            postgres=postgres,
            python=await enter(_python(config, scripts, folders, mask)),
            duckdb=duckdb,
            artifact=ArtifactTool(
                references_=references,
                buckets=buckets,
                http=http,
                vault=vault,
                mask=mask,
            ),
            spark=spark,
            transfer=TransferTool(
                http=http,
                postgres=postgres,
                duckdb=duckdb,
                mover=SparkMover(spark=spark, postgres=postgres),
                references_=references,
                locks=locks,
            ),
            shell=_shell(config, scripts, clock, folders),
            nats=await enter(open_nats(vault=vault, sends_traceparent=config.send_traceparent)),
            credential_test=CredentialTool(vault=vault, http=http, clock=clock),
            sparks=sparks,
            keyring=_keyring(config, vault, http.tokens, sealer, clock),
            lender=FileLender(folders.workspaces),
        )
        yield tools, mask


def _sweep() -> None:
    """Remove the folders of processes that were killed on this machine."""
    if gone := scratch.sweep():
        log.info("folders of killed processes removed", folders=gone)


def _scripts(config: Settings, http: HttpTool, buckets: BucketScripts) -> Scripts:
    return Scripts(directory=config.script_directory, http=http, buckets=buckets)


def _python(
    config: Settings, scripts: Scripts, folders: _Folders, mask: Mask
) -> AbstractAsyncContextManager[PythonTool]:
    return open_python(
        limits=assembly.python_limits(config),
        scripts=scripts,
        directory=folders.python_homes,
        hidden=folders.hidden,
        make_checkout=Checkout,
        environments=Environments(
            options=assembly.environment_options(config),
            root=folders.python_environments,
            mask=mask,
            run_command=_run_installer,
        ),
        mask=mask,
    )


async def _run_installer(
    command: tuple[str, ...], environ: dict[str, str], directory: Path
) -> tuple[int, str]:
    """Run an installer to its end; one that says too much is ended, and has failed."""
    launch = Launch(
        command=command,
        environ=environ,
        directory=directory,
        stdin=b"",
        grace_s=_INSTALLER_GRACE_S,
    )
    captured = Captured(_INSTALLER_OUTPUT_BYTES_MAX)
    try:
        code = await processes.run(launch, captured)
    except OutputTooLong:
        code = 1
    return code, captured.stderr.decode(errors="replace")


def _shell(config: Settings, scripts: Scripts, clock: Clock, folders: _Folders) -> ShellTool:
    return ShellTool(
        limits=assembly.shell_limits(config),
        directory=folders.shell_homes,
        hidden=folders.hidden,
        scripts=scripts,
        clock=clock,
    )


def _postgres(
    config: Settings, vault: Vault, references: References, scripts: Scripts
) -> AbstractAsyncContextManager[PostgresTool]:
    return open_postgres(
        vault=vault,
        scripts=scripts,
        references_=references,
        room=assembly.postgres_room(config),
    )


def _spark(
    config: Settings,
    sparks: Sparks,
    inputs: SparkInputs,
    *,
    references: References,
    scripts: Scripts,
) -> SparkTool:
    return SparkTool(
        sparks=sparks,
        references_=references,
        inputs=inputs,
        scripts=scripts,
        limits=assembly.spark_limits(config),
    )


def _keyring(
    config: Settings, vault: Vault, tokens: Tokens, sealer: Sealer, clock: Clock
) -> Keyring:
    return Keyring(
        sources=Sources(
            vault=vault,
            tokens=tokens,
            environ=config.secret_env,
            folder=Path(config.secret_folder) if config.secret_folder else None,
        ),
        sealer=sealer,
        kept=Kept(),
        clock=clock,
        template_env=config.template_env,
    )
