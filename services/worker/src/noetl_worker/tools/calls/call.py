"""A call of a tool: its fields, the ports that it may use, its outcome, and names of files.

A relative name, also as `file://name`, is a file of the execution. `noetl://files/<path>`, and an
absolute path below the organization's folder, is a file of the organization: it outlives the
execution.
"""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Protocol
from urllib.parse import unquote

from msgspec import UNSET, Struct, UnsetType

from noetl_contracts import codec
from noetl_contracts.commands.state_values import StateType
from noetl_contracts.commands.task_metrics import SparkProgress
from noetl_contracts.errors import ErrorObject
from noetl_contracts.execution_files import FilePathError, normalize_file_path
from noetl_playbook.model.playbook import Output
from noetl_worker.domain import unit_identity
from noetl_worker.domain.cursor_values import CursorReading
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.domain.unit_identity import UnitScope
from noetl_worker.task_logs.task_log import NullTaskLog, TaskLogPort

ORGANIZATION_PREFIX = "noetl://files/"
_FILE = "file://"


class FileName(Struct, frozen=True, kw_only=True):
    """A file of the execution, or of its organization; `path` is relative to their folder."""

    path: str
    is_of_organization: bool = False


def parse_file_name(text: Any, *, organization_folder: Path | None) -> FileName:
    """Read the name of a file; raises `ToolFailure` for one that leads out of its folder."""
    if not isinstance(text, str) or not text:
        raise _build_name_failure(f"a file is named by a text, not by {text!r:.120}")
    if text.startswith(ORGANIZATION_PREFIX):
        name = unquote(text.removeprefix(ORGANIZATION_PREFIX))
        return FileName(path=_check_path(name, text), is_of_organization=True)
    name = unquote(text.removeprefix(_FILE)) if text.startswith(_FILE) else text
    if not name.startswith("/"):
        return FileName(path=_check_path(name, text))
    if organization_folder is None or not Path(name).is_relative_to(organization_folder):
        raise _build_name_failure(
            f"{text!r:.120} is outside the folders that tasks may use: name a file of this "
            "execution by a relative path such as 'data/rows.csv', and a file that outlives it "
            f"by '{ORGANIZATION_PREFIX}rows.csv'"
        )
    inner = PurePosixPath(name).relative_to(organization_folder).as_posix()
    return FileName(path=_check_path(inner, text), is_of_organization=True)


def is_organization_name(text: Any) -> bool:
    """Tell whether a text names a file of the organization by its address."""
    return isinstance(text, str) and text.startswith(ORGANIZATION_PREFIX)


def _check_path(name: str, text: str) -> str:
    try:
        return normalize_file_path(name)
    except FilePathError as problem:
        raise _build_name_failure(f"{text!r:.120} {problem}") from problem


def _build_name_failure(text: str) -> ToolFailure:
    return ToolFailure(build_error("config", text))


class Timeout(Struct, frozen=True, kw_only=True):
    """Seconds for one attempt; `connect` and `read` are the HTTP tool's."""

    total: float
    connect: float | None = None
    read: float | None = None


class Transaction(Protocol):
    """The one transaction in which all Postgres tasks of a frame run."""

    async def run(self, call: "Call") -> "Outcome":
        """Run a call's statements in it."""


class RowSink(Protocol):
    """Where a task that streams puts its rows, in order, as they come."""

    @property
    def window_rows(self) -> int:
        """Return how many rows are worth handing over together."""

    async def write_rows(self, rows: list[Any], columns: Sequence[str] = ()) -> None:
        """Return when there is room for more; raises `ToolFailure`."""


class CheckoutPort(Protocol):
    """A folder in which code runs, with the files of one execution after another."""

    @property
    def folder(self) -> Path:
        """Where it is."""

    @property
    def is_bare(self) -> bool:
        """Whether no file was ever put there."""

    def clear_files(self) -> None:
        """Remove the files of an execution; raises `OSError`."""


class TaskFilesPort(Protocol):
    """The files of the execution, as one attempt of a task uses them."""

    def parse_name(self, text: object) -> FileName:
        """Read the name of a file; raises `ToolFailure`."""

    def lock_path(self, name: FileName) -> Path:
        """Return what stands for a file in locks."""

    async def fetch_path(self, name: FileName) -> Path:
        """Return where a file lies, or where it is to be written; raises `ToolFailure`."""

    async def fetch_folder(self, checkout: Any = None, *, is_exposed: bool = False) -> Path:
        """Return a folder with all files of the execution; raises `ToolFailure`."""

    async def publish_changes(self, outcome: "Outcome") -> None:
        """Make what the task changed the next version; raises `ToolFailure`."""

    async def drop_changes(self) -> bool:
        """Forget what was not published; tell whether the folder may be used again."""


class CursorScanPort(Protocol):
    """Looks through rows for the greatest cursor; every method raises `ToolFailure`."""

    column: str
    type: StateType

    @property
    def reading(self) -> CursorReading:
        """Return what was found so far."""

    def scan_rows(self, rows: Sequence[Any]) -> None:
        """Look through rows that are mappings."""

    def scan_batch(self, batch: Any) -> None:
        """Look through the one column of a record batch or a table of Arrow."""

    def note_reading(self, value: Any, rows: int) -> None:
        """Take over what somebody else has found: the greatest value of so many rows."""


class Call(Struct, frozen=True, kw_only=True):
    """One attempt of one task, every field rendered.

    `iterator` and `named` are what Python code may see besides its inputs. `may_share` says that
    nobody reads what a statement returns, so that it may travel with others of its kind. With a
    `sink` the rows go there, and the outcome has none. With `may_spread` the rows may be left in
    the payload store, a `Spread` in their place; `output` is how the result will be kept.
    """

    site: UnitScope
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
    sink: RowSink | None = None
    own_files: TaskFilesPort | None = None
    log: TaskLogPort = NullTaskLog()
    # Tells who follows the execution how far Spark is; where nobody can be told there is none.
    tell_progress: Callable[[SparkProgress], Awaitable[None]] | None = None
    # Looks through the rows that a transfer of an increment moves.
    increment: CursorScanPort | None = None

    @property
    def task_files(self) -> TaskFilesPort:
        """Return the files of the execution; only tools that use files may call it."""
        assert self.own_files is not None, "the file lender sets the files of each call"
        return self.own_files

    @property
    def idempotency_key(self) -> str:
        """Name the effect of this task: the same in every attempt of it."""
        site = self.site
        return unit_identity.build_idempotency_key(
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
        return codec.digest_hex(f"{self.idempotency_key}\n{self.attempt}".encode())


class RequestMade(Struct, frozen=True, kw_only=True):
    """A request that was sent, and the answer's status if one came; bytes are of the bodies."""

    method: str
    url: str
    status: int | None = None
    bytes_in: int = 0
    bytes_out: int = 0


class Outcome(Struct, frozen=True, kw_only=True):
    """What an attempt produced; with an error, `data` may hold a partial result."""

    data: Any | UnsetType = UNSET
    error: ErrorObject | None = None
    request: RequestMade | None = None
