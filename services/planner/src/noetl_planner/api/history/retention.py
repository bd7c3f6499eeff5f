"""Retention API: policies, holds, and the archive units of histories."""

from typing import Annotated

from litestar import get, post, put
from litestar.params import FromQuery, JSONBody, QueryParameter
from litestar.status_codes import HTTP_200_OK
from msgspec import Meta, Struct

from noetl_contracts.ids import ExecutionId
from noetl_planner.api.history import cuts
from noetl_planner.api.history.cuts import Text
from noetl_planner.api.http import problems
from noetl_planner.api.http.services import ApiServices, Services
from noetl_planner.api.lookup import execution_lookup
from noetl_storage.ports.payload_ports import Owner
from noetl_storage.ports.retention_ports import (
    ArchiveUnit,
    RetentionAction,
    RetentionHold,
    RetentionPolicy,
)

LISTED_MAX = 1000
Words = Annotated[str, Meta(min_length=1, max_length=2000)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
Days = Annotated[int, Meta(ge=0, le=36_500)]
Limit = Annotated[int, QueryParameter(ge=1, le=LISTED_MAX)]


class HoldBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is held, or no longer: an execution, or with none everything; why, and who says so."""

    tenant_id: Name
    organization_id: Name
    reason: Words
    who: Name
    execution_id: str | None = None


class PolicyBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many days after its end a history stays, and what becomes of it then."""

    tenant_id: Name
    organization_id: Name
    keep_days: Days
    action: RetentionAction
    who: Name


class Held(Struct, frozen=True, kw_only=True):
    """A hold that was placed, was there, or has ended."""

    hold_id: int
    execution_id: str | None


class HoldList(Struct, frozen=True, kw_only=True):
    """Holds, the latest first; there may be more when there are `limit`."""

    holds: list[RetentionHold]


class PolicyView(Struct, frozen=True, kw_only=True):
    """The owner's own policy; null where what the deployment says holds."""

    policy: RetentionPolicy | None


class UnitList(Struct, frozen=True, kw_only=True):
    """What was archived or dropped, the latest first."""

    units: list[ArchiveUnit]


@get("/retention/holds", tags=["retention"])
async def list_holds(
    services: Services,
    tenant_id: Text,
    organization_id: Text,
    *,
    released: FromQuery[bool] = False,
    limit: Limit = LISTED_MAX,
) -> HoldList:
    """List what may not leave the ledger, and on request what was released."""
    owner = _check_owner(services, tenant_id, organization_id)
    return HoldList(
        holds=await services.history.holds.list_holds(owner, has_released=released, holds_max=limit)
    )


@post("/retention/holds", status_code=HTTP_200_OK, tags=["retention"])
async def hold(services: Services, data: JSONBody[HoldBody]) -> Held:
    """Hold an execution, or everything; nothing of it leaves the ledger from now on."""
    owner = _check_owner(services, data.tenant_id, data.organization_id)
    execution_id = await _check_history_owner(services, data.execution_id)
    target = execution_id or "everything"
    async with services.record_change("hold.placed", target, reason=data.reason):
        hold_id = await services.history.holds.place_hold(
            owner,
            execution_id=execution_id,
            reason=data.reason,
            who=services.name_asker(data.who),
        )
    return Held(hold_id=hold_id, execution_id=execution_id)


@post("/retention/holds/release", status_code=HTTP_200_OK, tags=["retention"])
async def release(services: Services, data: JSONBody[HoldBody]) -> Held:
    """End the open hold of an execution, or the one on everything."""
    owner = _check_owner(services, data.tenant_id, data.organization_id)
    execution_id = (
        None
        if data.execution_id is None
        else execution_lookup.check_execution_id(data.execution_id)
    )
    target = execution_id or "everything"
    async with services.record_change("hold.released", target, reason=data.reason):
        ended = await services.history.holds.release_hold(
            owner,
            execution_id=execution_id,
            reason=data.reason,
            who=services.name_asker(data.who),
        )
        if ended is None:
            target_text = "everything" if execution_id is None else f"execution {execution_id}"
            raise problems.build_not_found_error(
                f"there is no open hold on {target_text}",
                hint="noetl retention list lists them",
            )
    return Held(hold_id=ended, execution_id=execution_id)


@get("/retention/policy", tags=["retention"])
async def show_policy(services: Services, tenant_id: Text, organization_id: Text) -> PolicyView:
    """Show how long histories stay."""
    owner = _check_owner(services, tenant_id, organization_id)
    return PolicyView(policy=await services.history.holds.find_policy(owner))


@put("/retention/policy", status_code=HTTP_200_OK, tags=["retention"])
async def set_policy(services: Services, data: JSONBody[PolicyBody]) -> PolicyView:
    """Say how long histories stay; holds come first."""
    owner = _check_owner(services, data.tenant_id, data.organization_id)
    async with services.record_change(
        "retention.policy_set", "policy", keep_days=data.keep_days, then=str(data.action)
    ):
        await services.history.holds.set_policy(
            owner,
            keep_days=data.keep_days,
            action=data.action,
            who=services.name_asker(data.who),
        )
    return PolicyView(policy=await services.history.holds.find_policy(owner))


@get("/retention/units", tags=["retention"])
async def list_units(
    services: Services, tenant_id: Text, organization_id: Text, limit: Limit = 100
) -> UnitList:
    """List what was archived or dropped, and how far it has come."""
    owner = _check_owner(services, tenant_id, organization_id)
    return UnitList(units=await services.history.holds.list_units(owner, units_max=limit))


async def _check_history_owner(services: ApiServices, text: str | None) -> ExecutionId | None:
    """Check that the owner has this history to hold; raises a 404."""
    if text is None:
        return None
    execution_id = execution_lookup.check_execution_id(text)
    if await services.history.audit.find_owner(execution_id) != Owner(**services.tenant_scope):
        raise problems.build_not_found_error(
            f"there is no history of an execution {execution_id}",
            hint="noetl ls lists them",
        )
    return execution_id


def _check_owner(services: ApiServices, tenant_id: str, organization_id: str) -> Owner:
    cuts.check_owner(services, tenant_id, organization_id)
    return Owner(**services.tenant_scope)


ROUTES = [list_holds, hold, release, show_policy, set_policy, list_units]
