"""Where a unit of work stands."""

from collections.abc import Awaitable
from typing import Any, Protocol

from msgspec import Struct

from noetl_contracts.file_sources import FileSource
from noetl_contracts.ids import ExecutionId, FrameId, OrganizationId, TenantId


class Keychain(Protocol):
    """The part of a keychain that stands in for stored credentials."""

    def credential(self, name: str) -> Awaitable[Any]:
        """Give an entry as a credential, None when there is no such entry."""

    def kept_safe(self, value: Any, *, is_secret: bool) -> Any:
        """Seal the texts of a value that is about to become state, where they hold secrets."""


class Site(Struct, frozen=True, kw_only=True):
    """Where a unit of work stands: one step run, item or row.

    `activation` counts the step runs of the execution; `file_sources` and `file_entries` are
    those of the command. With `is_repeated` the work may have been done before, or others may
    have changed files of which the command says nothing.
    """

    execution_id: ExecutionId
    tenant_id: TenantId
    organization_id: OrganizationId
    step: str
    unit: str
    row_index: int | None = None
    frame_id: FrameId | None = None
    activation: int = 0
    file_sources: tuple[FileSource, ...] = ()
    file_entries: int = 0
    is_repeated: bool = True
    # The command's keychain, by which a credential's name may be an entry's.
    keychain: Keychain | None = None
