"""A tenant sees the workers that may serve it; a default tenant is not another's to change."""

from http import HTTPStatus
from typing import Any

import pytest
from tests.support.api import ApiWorld
from tests.support.identities import OTHER, OWN, OWNER, Caller, make_guarded_app, open_client
from tests.support.identities import make_caller as make_account

from noetl_chassis.clock import SystemClock
from noetl_contracts.commands.worker_pools import WorkerHeartbeat
from noetl_contracts.identity.actors import ActorKind
from noetl_contracts.identity.role_bindings import ALL_ORGANIZATIONS, RoleBinding, SubjectKind
from noetl_contracts.ids import OrganizationId, TenantId, WorkerId
from noetl_planner.identity.access_resolver import AccessResolver, NoRole
from noetl_planner.identity.principals import Access, Principal
from noetl_planner.shards.worker_presence import WorkerPresence

ANN = Principal(kind=ActorKind.PERSON, id="ann", name="ann", issuer="https://id.example")
Place = tuple[TenantId, OrganizationId]
FIRST = (TenantId("first"), OrganizationId("first"))
LATER = (TenantId("later"), OrganizationId("later"))


@pytest.fixture
def world() -> ApiWorld:
    return ApiWorld()


def make_app(world: ApiWorld) -> Any:
    presence = WorkerPresence(SystemClock())
    for name, tenants in (
        ("shared", ()),
        ("own", (str(OWN[0]),)),
        ("other", (str(OTHER[0]),)),
        ("both", (str(OWN[0]), str(OTHER[0]))),
    ):
        presence.note_beat(
            WorkerHeartbeat(
                worker_id=WorkerId(name),
                pool="default",
                lanes=("normal",),
                running=0,
                capacity=4,
                tenants=tenants,
            )
        )
    return make_guarded_app(world, worker_presence=presence)


async def list_workers(app: Any, caller: Caller) -> set[str]:
    async with open_client(app, caller) as client:
        answer = await client.get("/api/workers")
    assert answer.status_code == HTTPStatus.OK, answer.text
    return {worker["worker_id"] for worker in answer.json()["workers"]}


@pytest.mark.parametrize("role", ["viewer", "admin"])
async def test_workers_of_other_tenants_alone_are_not_shown(world: ApiWorld, role: str) -> None:
    app = make_app(world)
    account = await make_account(world, role)
    other = await make_account(world, role, place=OTHER)
    assert await list_workers(app, account) == {"shared", "own", "both"}
    assert await list_workers(app, other) == {"shared", "other", "both"}


async def test_the_owner_sees_every_worker(world: ApiWorld) -> None:
    assert await list_workers(make_app(world), OWNER) == {"shared", "own", "other", "both"}


async def bind(
    world: ApiWorld, number: int, place: Place, *, kind: SubjectKind = SubjectKind.PERSON
) -> None:
    await world.identities.put_binding(
        RoleBinding(
            binding_id=str(number),
            tenant_id=place[0],
            organization_id=place[1],
            subject_kind=kind,
            issuer=ANN.issuer,
            subject="ann" if kind is SubjectKind.PERSON else "team",
            role="viewer",
        )
    )


async def resolve(world: ApiWorld, *, groups: tuple[str, ...] = (), **chosen: str) -> Access:
    resolver = AccessResolver(world.identities, tenant_id=OWN[0], organization_id=OWN[1])
    principal = Principal(kind=ANN.kind, id=ANN.id, name=ANN.name, issuer=ANN.issuer, groups=groups)
    return await resolver.resolve_access(
        principal, tenant=chosen.get("tenant"), organization=chosen.get("organization")
    )


@pytest.mark.parametrize("intruder", [LATER, OWN, (LATER[0], ALL_ORGANIZATIONS)])
@pytest.mark.parametrize("kind", [SubjectKind.PERSON, SubjectKind.GROUP])
async def test_a_later_binding_of_somebody_else_leads_nobody_elsewhere(
    world: ApiWorld, intruder: Place, kind: SubjectKind
) -> None:
    await bind(world, 5, FIRST)
    await bind(world, 6, intruder, kind=kind)
    access = await resolve(world, groups=("team",))
    assert (access.tenant_id, access.organization_id) == FIRST


async def test_another_tenant_is_still_there_to_be_chosen(world: ApiWorld) -> None:
    await bind(world, 5, FIRST)
    await bind(world, 6, LATER)
    chosen = await resolve(world, tenant="later")
    assert (chosen.tenant_id, chosen.organization_id) == LATER
    with pytest.raises(NoRole, match="no role in tenant 'nowhere'"):
        await resolve(world, tenant="nowhere")
