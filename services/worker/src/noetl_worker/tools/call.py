"""What every tool is given, and what it gives back."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from msgspec import UNSET, Struct, UnsetType

from noetl_contracts import codec
from noetl_contracts.errors import ErrorObject
from noetl_contracts.step_progress import SparkProgress
from noetl_playbook.model import Output
from noetl_worker.domain import identity
from noetl_worker.domain.log_port import Log, NoLog
from noetl_worker.domain.sites import Site
from noetl_worker.tools.file_names import FileName


class Timeout(Struct, frozen=True, kw_only=True):
    """Seconds for one attempt; `connect` and `read` are the HTTP tool's."""

    total: float
    connect: float | None = None
    read: float | None = None


class Transaction(Protocol):
    """The one transaction in which all Postgres tasks of a frame run."""

    async def run(self, call: "Call") -> "Outcome":
        """Run a call's statements in it."""


class Sink(Protocol):
    """Where a task that streams puts its rows, in order, as they come."""

    @property
    def window_rows(self) -> int:
        """Return how many rows are worth handing over together."""

    async def take(self, rows: list[Any], columns: Sequence[str] = ()) -> None:
        """Return when there is room for more; raises `ToolFailure`."""


class Files(Protocol):
    """The files of the execution, as one attempt of a task uses them."""

    def parse_name(self, text: object) -> FileName:
        """Read the name of a file; raises `ToolFailure`."""

    def lock_path(self, name: FileName) -> Path:
        """Return what stands for a file in locks."""

    async def path(self, name: FileName) -> Path:
        """Return where a file lies, or where it is to be written; raises `ToolFailure`."""

    async def folder(self, checkout: Any = None, *, is_exposed: bool = False) -> Path:
        """Return a folder with all files of the execution; raises `ToolFailure`."""

    async def publish(self, outcome: "Outcome") -> None:
        """Make what the task changed the next version; raises `ToolFailure`."""

    async def drop_changes(self) -> bool:
        """Forget what was not published; tell whether the folder may be used again."""


class Call(Struct, frozen=True, kw_only=True):
    """One attempt of one task, every field rendered.

    `iterator` and `named` are what Python code may see besides its inputs. `may_share` says that
    nobody reads what a statement returns, so that it may travel with others of its kind. With a
    `sink` the rows go there, and the outcome has none. With `may_spread` the rows may be left in
    the payload store, a `Spread` in their place; `output` is how the result will be kept.
    """

    site: Site
    task: str
    kind: str
    attempt: int
    visit: int
    fields: dict[str, Any]
    input: dict[str, Any]
    auth: Any
    timeout: Timeout
    iterator: dict[str, Any] = {}
    named: dict[str, Any] = {}
    transaction: Transaction | None = None
    may_share: bool = False
    may_spread: bool = False
    output: Output | None = None
    sink: Sink | None = None
    own_files: Files | None = None
    log: Log = NoLog()
    # Tells who follows the execution how far Spark is; where nobody can be told there is none.
    tell_progress: Callable[[SparkProgress], Awaitable[None]] | None = None

    @property
    def files(self) -> Files:
        """Return the files of the execution."""
        assert self.own_files is not None, "a tool that uses files is lent some"
        return self.own_files

    @property
    def idempotency_key(self) -> str:
        """Name the effect of this task: the same in every attempt of it."""
        site = self.site
        return identity.idempotency_key(
            execution_id=site.execution_id,
            step=site.step,
            activation=site.activation,
            unit=site.unit,
            row_index=site.row_index,
            task=self.task,
            visit=self.visit,
        )

    @property
    def attempt_key(self) -> str:
        """Name this attempt of the task: the same when the command is sent again."""
        return codec.digest(f"{self.idempotency_key}\n{self.attempt}".encode())


class RequestMade(Struct, frozen=True, kw_only=True):
    """A request that was sent, and the answer's status if one came; bytes are of the bodies."""

    method: str
    url: str
    status: int | None = None
    bytes_in: int = 0
    bytes_out: int = 0


class Outcome(Struct, frozen=True, kw_only=True):
    """What an attempt produced; with an error, `data` is whatever there still is."""

    data: Any | UnsetType = UNSET
    error: ErrorObject | None = None
    request: RequestMade | None = None
