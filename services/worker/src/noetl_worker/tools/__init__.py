"""The tools: one file a kind, one signature."""

from typing import Literal, assert_never, get_args

from msgspec import Struct

from noetl_worker.domain.failures import failure
from noetl_worker.keys.keychain import Keyring
from noetl_worker.spark.session import Sparks
from noetl_worker.tools import container, noop
from noetl_worker.tools.artifact import ArtifactTool
from noetl_worker.tools.call import Call, Outcome
from noetl_worker.tools.duckdb import DuckdbTool
from noetl_worker.tools.http import HttpTool
from noetl_worker.tools.nats import NatsTool
from noetl_worker.tools.postgres import PostgresTool
from noetl_worker.tools.python import PythonTool
from noetl_worker.tools.shell import ShellTool
from noetl_worker.tools.spark import SparkTool
from noetl_worker.tools.transfer import TransferTool

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
]
KINDS: frozenset[str] = frozenset(get_args(Kind))


class Tools(Struct, frozen=True, kw_only=True):
    """The opened tools of a worker, its Spark, and the keyring by which templates reach secrets."""

    http: HttpTool
    postgres: PostgresTool
    python: PythonTool
    shell: ShellTool
    nats: NatsTool
    spark: SparkTool
    duckdb: DuckdbTool
    artifact: ArtifactTool
    transfer: TransferTool
    sparks: Sparks
    keyring: Keyring

    async def run(self, call: Call) -> Outcome:  # noqa: C901, PLR0912 - one arm per kind
        """Run one attempt with the tool of its kind."""
        if call.kind not in KINDS:
            text = f"kind '{call.kind}' is not available: use {', '.join(sorted(KINDS))}"
            return Outcome(error=failure("unsupported_tool", text))
        kind: Kind = call.kind  # type: ignore[assignment]  # membership was checked above
        match kind:
            case "http":
                return await self.http.run(call)
            case "postgres":
                return await self.postgres.run(call)
            case "python":
                return await self.python.run(call)
            case "shell":
                return await self.shell.run(call)
            case "nats":
                return await self.nats.run(call)
            case "spark":
                return await self.spark.run(call)
            case "container":
                return await container.run(call)
            case "duckdb":
                return await self.duckdb.run(call)
            case "artifact":
                return await self.artifact.run(call)
            case "transfer":
                return await self.transfer.run(call)
            case "noop":
                return await noop.run(call)
            case _:
                assert_never(kind)
