"""Role bindings, API keys and administration records are kept alike by every adapter."""

from datetime import timedelta
from typing import Any

import pytest
from msgspec import structs
from tests.conformance.storage.test_projections import execution_row, project
from tests.conformance.storage.test_registry import an_entry
from tests.support.storage import NOON, ORGANIZATION, TENANT, Stores, an_execution

from noetl_contracts.identity import administration
from noetl_contracts.identity.actors import Actor, ActorKind, Via
from noetl_contracts.identity.administration import NewRecord, Outcome, RecordFilter
from noetl_contracts.identity.quotas import TenantQuota
from noetl_contracts.identity.role_bindings import (
    ALL_ORGANIZATIONS,
    ApiKey,
    PersonGroups,
    RoleBinding,
    SubjectKind,
)
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.requests.schedules import Schedule
from noetl_storage.ports.errors import VersionConflict
from noetl_storage.ports.identity_ports import SubjectNames

SCOPE: dict[str, Any] = {"tenant_id": TENANT, "organization_id": ORGANIZATION}
ANN = SubjectNames(kind="person", subject="ann", issuer="https://id", groups=("data", "ops"))
ACTOR = Actor(kind=ActorKind.PERSON, id="ann", name="Ann", via=Via.CLI)


def a_binding(number: int, **changes: Any) -> RoleBinding:
    values: dict[str, Any] = {
        "binding_id": str(number),
        **SCOPE,
        "subject_kind": SubjectKind.PERSON,
        "subject": "ann",
        "role": "author",
    }
    return RoleBinding(**{**values, **changes})


def a_key(prefix: str = "noetl_1", **changes: Any) -> ApiKey:
    values: dict[str, Any] = {
        "key_prefix": prefix,
        **SCOPE,
        "account": "loader",
        "account_kind": SubjectKind.SERVICE_ACCOUNT,
        "digest": bytes(32),
    }
    return ApiKey(**{**values, **changes})


def a_record(action: str = "role.granted", **changes: Any) -> NewRecord:
    values: dict[str, Any] = {
        **SCOPE,
        "event_time": NOON,
        "action": action,
        "target": "person ann",
        "actor": ACTOR,
    }
    return NewRecord(**{**values, **changes})


async def test_the_same_binding_is_kept_once(stores: Stores) -> None:
    first = await stores.identities.put_binding(a_binding(1, created_by="root"))
    again = await stores.identities.put_binding(a_binding(2, created_by="eve"))
    assert again == first
    assert first.created_at is not None
    assert await stores.identities.list_bindings(**SCOPE, bindings_max=9) == [first]


@pytest.mark.parametrize(
    ("changes", "is_found"),
    [
        ({}, True),
        ({"issuer": "https://id"}, True),
        ({"issuer": "https://other"}, False),
        ({"subject": "bob"}, False),
        ({"subject_kind": SubjectKind.GROUP, "subject": "ops"}, True),
        ({"subject_kind": SubjectKind.GROUP, "subject": "ann"}, False),
        ({"subject_kind": SubjectKind.SERVICE_ACCOUNT}, False),
        ({"tenant_id": TenantId("other")}, True),
    ],
)
async def test_bindings_are_found_by_identity_and_groups(
    stores: Stores, changes: dict[str, Any], *, is_found: bool
) -> None:
    binding = await stores.identities.put_binding(a_binding(1, **changes))
    assert await stores.identities.find_bindings(ANN) == ([binding] if is_found else [])


async def test_a_binding_of_all_organizations_is_listed_in_each(stores: Stores) -> None:
    binding = await stores.identities.put_binding(a_binding(1, organization_id=ALL_ORGANIZATIONS))
    here = await stores.identities.list_bindings(**SCOPE, bindings_max=9)
    assert here == [binding]
    # Who administers one organization does not take it away from all.
    assert await stores.identities.remove_binding("1", **SCOPE) is None
    removed = await stores.identities.remove_binding("1", **SCOPE, has_everywhere=True)
    assert removed == binding
    assert await stores.identities.find_bindings(ANN) == []


async def test_a_binding_of_another_tenant_is_not_removed(stores: Stores) -> None:
    await stores.identities.put_binding(a_binding(1, tenant_id=TenantId("other")))
    assert await stores.identities.remove_binding("1", **SCOPE) is None
    assert len(await stores.identities.find_bindings(ANN)) == 1


@pytest.mark.parametrize("trace", ["binding", "record", "quota", "playbook", "execution"])
async def test_a_tenant_is_there_with_the_first_that_is_kept_for_it(
    stores: Stores, trace: str
) -> None:
    assert not await stores.identities.has_tenant(TENANT)
    assert await stores.identities.find_other_tenant(TENANT) is None
    if trace == "binding":
        await stores.identities.put_binding(a_binding(1))
    elif trace == "record":
        await stores.administration.append_record(a_record())
    elif trace == "quota":
        await stores.quotas.put_quota(TenantQuota(tenant_id=TENANT, running_max=1))
    elif trace == "playbook":
        await stores.catalog.register_playbook(an_entry())
    else:
        execution = an_execution()
        await project(stores, execution, execution=[execution_row(execution)])
    assert await stores.identities.has_tenant(TENANT)
    assert not await stores.identities.has_tenant(TenantId(f"{TENANT}2"))
    assert await stores.identities.find_other_tenant(TENANT) is None
    for other in (f"{TENANT}2", f"a{TENANT}"):
        assert await stores.identities.find_other_tenant(TenantId(other)) == TENANT
    # A quota is of a tenant, and of no organization.
    has_organization = await stores.identities.has_organization(TENANT, ORGANIZATION)
    assert has_organization == (trace != "quota")
    for other in ((TENANT, f"{ORGANIZATION}2"), (f"{TENANT}2", ORGANIZATION)):
        tenant_id, organization_id = TenantId(other[0]), OrganizationId(other[1])
        assert not await stores.identities.has_organization(tenant_id, organization_id)


async def test_a_key_is_found_until_and_after_it_is_revoked(stores: Stores) -> None:
    await stores.identities.put_key(a_key())
    assert await stores.identities.has_any_key()
    await stores.identities.note_key_use("noetl_1", NOON)
    await stores.identities.note_key_use("noetl_1", NOON - timedelta(hours=1))
    key = await stores.identities.find_key("noetl_1")
    assert key is not None
    assert key.used_at == NOON
    assert key.is_valid_at(NOON)
    elsewhere = {**SCOPE, "organization_id": OrganizationId("other")}
    assert not await stores.identities.revoke_key("noetl_1", **elsewhere)
    assert await stores.identities.revoke_key("noetl_1", **SCOPE)
    assert not await stores.identities.revoke_key("noetl_1", **SCOPE)
    revoked = await stores.identities.find_key("noetl_1")
    assert revoked is not None
    assert not revoked.is_valid_at(NOON)
    assert not await stores.identities.has_any_key()


async def test_a_key_is_found_with_the_roles_of_its_account(stores: Stores) -> None:
    assert await stores.identities.find_key_roles("noetl_1") is None
    await stores.identities.put_key(a_key())
    bare = await stores.identities.find_key_roles("noetl_1")
    assert bare is not None
    assert (bare.key, bare.bindings) == (await stores.identities.find_key("noetl_1"), ())
    account = {"subject": bare.key.account, "subject_kind": bare.key.account_kind}
    bindings = [
        await stores.identities.put_binding(a_binding(number, **account, **changes))
        for number, changes in enumerate(({}, {"tenant_id": TenantId("other")}), start=1)
    ]
    # A group, a person of that name, and an account that another issuer vouches for.
    await stores.identities.put_binding(
        a_binding(3, **{**account, "subject_kind": SubjectKind.GROUP})
    )
    await stores.identities.put_binding(
        a_binding(4, **{**account, "subject_kind": SubjectKind.PERSON})
    )
    await stores.identities.put_binding(a_binding(5, **account, issuer="https://id"))
    found = await stores.identities.find_key_roles("noetl_1")
    assert found is not None
    assert sorted(found.bindings, key=lambda binding: binding.binding_id) == bindings


async def test_a_key_names_its_maker_by_what_never_changes(stores: Stores) -> None:
    maker = Actor(kind=ActorKind.PERSON, issuer="https://id", id="7")
    await stores.identities.put_key(a_key("noetl_1", created_by="Ann", maker=maker))
    await stores.identities.put_key(a_key("noetl_2", created_by="Ann"))
    made, earlier = [await stores.identities.find_key(f"noetl_{n}") for n in (1, 2)]
    assert made is not None
    assert made.maker == maker
    assert earlier is not None
    assert earlier.maker is None


async def test_two_keys_of_one_prefix_are_refused(stores: Stores) -> None:
    await stores.identities.put_key(a_key())
    with pytest.raises(VersionConflict):
        await stores.identities.put_key(a_key(account="other"))


async def test_records_are_sealed_one_behind_the_other(stores: Stores) -> None:
    for action in ("role.granted", "role.revoked", "key.created"):
        await stores.administration.append_record(a_record(action, details={"n": [1.5, None]}))
    records = await stores.administration.list_records(
        RecordFilter(), **SCOPE, after_version=0, records_max=9
    )
    assert [record.version for record in records] == [1, 2, 3]
    assert administration.find_broken_record(records) is None
    forged = structs.replace(records[1], actor=structs.replace(ACTOR, id="eve"))
    broken = administration.find_broken_record([records[0], forged, records[2]])
    assert broken == forged


async def test_records_are_found_by_who_what_when_and_outcome(stores: Stores) -> None:
    child = Actor(kind=ActorKind.SCHEDULE, id="7", name="nightly", on_behalf_of=ACTOR)
    bob = Actor(kind=ActorKind.PERSON, id="bob", name="Bob", key_prefix="noetl_9")
    for record in (
        a_record("role.granted"),
        a_record("roles.listed", actor=child),
        a_record("access.denied", actor=bob, outcome=Outcome.REFUSED),
        a_record("key.created", actor=bob, event_time=NOON + timedelta(hours=1)),
    ):
        await stores.administration.append_record(record)

    async def find_versions(**wanted: Any) -> list[int]:
        records = await stores.administration.list_records(
            RecordFilter(**wanted), **SCOPE, after_version=0, records_max=9
        )
        return [record.version for record in records]

    assert await find_versions(who="Ann") == [1, 2]
    assert await find_versions(who="noetl_9") == [3, 4]
    assert await find_versions(what="role") == [1]
    assert await find_versions(what="key.created") == [4]
    assert await find_versions(since=NOON + timedelta(minutes=1)) == [4]
    assert await find_versions(until=NOON + timedelta(hours=1), who="bob") == [3]
    assert await find_versions(outcome=Outcome.REFUSED) == [3]
    latest = await stores.administration.list_latest_records(
        RecordFilter(who="bob"), **SCOPE, records_max=1
    )
    assert [record.version for record in latest] == [4]
    latest = await stores.administration.list_latest_records(
        RecordFilter(until=NOON + timedelta(minutes=1)), **SCOPE, records_max=2
    )
    assert [record.version for record in latest] == [2, 3]


async def test_organizations_have_streams_of_their_own(stores: Stores) -> None:
    await stores.administration.append_record(a_record())
    other = await stores.administration.append_record(
        a_record(organization_id=OrganizationId("other"))
    )
    assert other.version == 1


async def test_a_schedule_keeps_who_put_it(stores: Stores) -> None:
    schedule = Schedule(
        schedule_id="7", **SCOPE, name="nightly", path="a/b", cron="0 3 * * *", actor=ACTOR
    )
    await stores.schedules.put_schedule(schedule)
    found = await stores.schedules.find_schedule("nightly", **SCOPE)
    assert found is not None
    assert found.actor == ACTOR


async def test_groups_of_an_older_sign_in_do_not_replace_newer_ones(stores: Stores) -> None:
    who = {"issuer": "https://id", "subject": "ann"}
    assert await stores.identities.find_groups(**who) is None
    later = PersonGroups(**who, groups=("data",), seen_at=NOON + timedelta(hours=1))
    await stores.identities.put_groups(later)
    await stores.identities.put_groups(PersonGroups(**who, groups=("ops",), seen_at=NOON))
    assert await stores.identities.find_groups(**who) == later
    latest = PersonGroups(**who, groups=(), seen_at=NOON + timedelta(hours=2))
    await stores.identities.put_groups(latest)
    assert await stores.identities.find_groups(**who) == latest
