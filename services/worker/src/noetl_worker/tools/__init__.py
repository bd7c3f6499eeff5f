"""The tools: one file a kind, one signature."""

from collections.abc import Awaitable
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

    def run(self, call: Call) -> Awaitable[Outcome]:  # noqa: C901, PLR0912 - one arm per kind
        """Run one attempt with the tool of its kind."""
        if call.kind not in KINDS:
            return _unsupported(call.kind)
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
                return container.run(call)
            case "duckdb":
                return self.duckdb.run(call)
            case "artifact":
                return self.artifact.run(call)
            case "transfer":
                return self.transfer.run(call)
            case "noop":
                return noop.run(call)
            case _:
                assert_never(kind)


async def _unsupported(kind: str) -> Outcome:
    text = f"kind '{kind}' is not available: use {', '.join(sorted(KINDS))}"
    return Outcome(error=failure("unsupported_tool", text))
