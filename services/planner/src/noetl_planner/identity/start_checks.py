"""Checks of what begins without anybody at the door: firings, notifications, child executions."""

from noetl_contracts.errors import ErrorObject
from noetl_contracts.identity.actors import Actor, ActorKind
from noetl_contracts.requests import notifications
from noetl_contracts.requests.facts import ExecutionRequested, FactBatch
from noetl_planner.identity.author_access import AuthorAccess
from noetl_planner.identity.permissions import Permission

KIND, CODE = "auth", "FORBIDDEN"


class StartChecks:
    """Refuses what who caused it may not begin any more, and records the refusal."""

    def __init__(self, authors: AuthorAccess) -> None:
        self._authors = authors

    async def find_refusal(self, batch: FactBatch) -> ErrorObject | None:
        """Return the error of an execution that may not begin; None where it may.

        Raises what the store raises.
        """
        request = next((fact for fact in batch.facts if isinstance(fact, ExecutionRequested)), None)
        actor = batch.actor
        if request is None or not isinstance(actor, Actor):
            return None
        needed = _find_permission(actor)
        if needed is None:
            return None
        is_about_all = notifications.is_rule_actor(actor)
        fault = await self._authors.find_fault(
            actor,
            needed,
            path=None if is_about_all else request.path,
            tenant_id=batch.tenant_id,
            organization_id=batch.organization_id,
        )
        if fault is None:
            return None
        starter = f"{actor.kind} {actor.short_name}"
        await self._authors.record_refusal(
            actor,
            f"start of {request.path}",
            fault,
            tenant_id=batch.tenant_id,
            organization_id=batch.organization_id,
        )
        return ErrorObject(
            kind=KIND,
            code=CODE,
            message=f"{starter} may not start playbook {request.path!r}: {fault}; {_WAYS[needed]}",
            details={"path": request.path},
        )


# A firing was held against the role of who calls or runs it by hand, at the door.
_PERMISSIONS = {
    ActorKind.SCHEDULE: Permission.WRITE_PLAYBOOKS,
    ActorKind.EXECUTION: Permission.RUN,
}
_WAYS = {
    Permission.WRITE_PLAYBOOKS: "somebody who may takes it over",
    Permission.RUN: "an administrator gives roles: noetl role grant",
}


def _find_permission(actor: Actor) -> Permission | None:
    if notifications.is_rule_actor(actor):
        return Permission.WRITE_PLAYBOOKS
    return _PERMISSIONS.get(actor.kind)
