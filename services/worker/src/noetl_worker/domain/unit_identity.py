"""Identity of a unit of work: execution, step, unit and attempt."""

import hmac
from collections.abc import Awaitable
from typing import Any, Protocol

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.execution_files import FileSource
from noetl_contracts.ids import ExecutionId, FrameId, OrganizationId, TenantId


class KeychainPort(Protocol):
    """The part of a keychain that stands in for stored credentials."""

    def find_credential(self, name: str) -> Awaitable[Any]:
        """Give an entry as a credential, None when there is no such entry."""

    def seal_secrets(self, value: Any, *, is_secret: bool) -> Any:
        """Seal the texts of a value that is about to become state, where they hold secrets."""


class UnitScope(Struct, frozen=True, kw_only=True):
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
    keychain: KeychainPort | None = None
    # The playbook's path.
    path: str = ""


def build_idempotency_key(
    *,
    execution_id: str,
    step: str,
    activation: int,
    unit: str,
    row_index: int | None,
    task: str,
    visit: int,
) -> str:
    """Name one logical request: the same in every try and replay.

    It is another for another page, and for another run of the step.
    """
    row = "" if row_index is None else row_index
    seed = f"{execution_id}\n{step}\n{activation}\n{unit}\n{row}\n{task}\n{visit}"
    return codec.digest_hex(seed.encode())


class CallbackAddresses(Struct, frozen=True, kw_only=True):
    """Where answers are sent to, and the secret that tokens are made of."""

    base_url: str = "http://127.0.0.1:8080"
    secret: str = ""

    def build_token(self, *, command_id: str, key: str) -> str:
        """Return the token of one attempt of a task; nobody can guess it without the secret."""
        seed = f"callback/{command_id}/{key}".encode()
        return hmac.new(self.secret.encode(), seed, "sha256").hexdigest()

    def build_url(self, token: str) -> str:
        """Return the address that takes the answer."""
        return f"{self.base_url.rstrip('/')}/api/callbacks/{token}"
