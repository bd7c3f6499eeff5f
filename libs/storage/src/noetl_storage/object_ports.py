"""What is asked of the things that playbooks are about, across executions."""

from typing import Any, Protocol

from noetl_contracts.envelope import Envelope
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId


class ObjectRows(Protocol):
    """Reads the rows of business objects; an object has one in each execution that changed it."""

    async def list_objects(
        self,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        object_type: str | None = None,
        execution_id: ExecutionId | None = None,
        has_deleted: bool = True,
        after: tuple[str, str] = ("", ""),
        objects_max: int,
    ) -> list[dict[str, Any]]:
        """Return the latest row of each object, by type and id, behind a type and id.

        With `execution_id` it is the row of that execution, and only its objects are listed.
        """

    async def list_of_object(
        self,
        object_type: str,
        object_id: str,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        rows_max: int,
    ) -> list[dict[str, Any]]:
        """Return an object's rows, one an execution that changed it, the latest first."""

    async def list_changes(
        self,
        execution_id: ExecutionId,
        object_id: str,
        *,
        after_version: int,
        until_version: int,
        changes_max: int,
    ) -> list[Envelope] | None:
        """Return the events of one object in a range of versions, in order, and no others.

        None where the ledger does not have the history from its beginning.
        """
