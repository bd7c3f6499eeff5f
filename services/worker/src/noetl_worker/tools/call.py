"""What every tool is given, and what it gives back."""

from typing import Any, Protocol

import msgspec
from msgspec import UNSET, Struct, UnsetType

from noetl_contracts.errors import ErrorObject
from noetl_contracts.ids import ExecutionId, FrameId, OrganizationId, TenantId


class Site(Struct, frozen=True, kw_only=True):
    """Where a unit of work stands: one step run, item or row."""

    execution_id: ExecutionId
    tenant_id: TenantId
    organization_id: OrganizationId
    step: str
    unit: str
    row_index: int | None = None
    frame_id: FrameId | None = None


class Timeout(Struct, frozen=True, kw_only=True):
    """Seconds for one attempt; `connect` and `read` are the HTTP tool's."""

    total: float
    connect: float | None = None
    read: float | None = None


class Transaction(Protocol):
    """The one transaction in which all Postgres tasks of a frame run."""

    async def run(self, call: "Call") -> "Outcome":
        """Run a call's statements in it."""


class Call(Struct, frozen=True, kw_only=True):
    """One attempt of one task, every field rendered.

    `iterator` and `named` are what Python code may see besides its inputs.
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


class Outcome(Struct, frozen=True, kw_only=True):
    """What an attempt produced; with an error, `data` is whatever there still is."""

    data: Any | UnsetType = UNSET
    error: ErrorObject | None = None


class ToolFailure(Exception):  # noqa: N818 - it carries an outcome, it is not one of the errors
    """Ends an attempt early with an error."""

    def __init__(self, error: ErrorObject) -> None:
        super().__init__(error.message)
        self.error = error


def as_text(value: Any) -> str:
    """Write a value into a header, a query or a text parameter."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    return msgspec.json.encode(value).decode()
