"""Attacks on an approval by a second person, on credentials, and by names of one's own choice."""

import asyncio
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from tests.support.guarded_shop import DEFAULT, Shop, open_shop
from tests.support.identities import Caller, make_caller_of

from noetl_contracts.identity.actors import Actor, ActorKind
from noetl_contracts.identity.role_bindings import ApiKey, SubjectKind
from noetl_contracts.ids import ExecutionId
from noetl_planner.api.http import gate
from noetl_planner.api.triggers import inbox
from noetl_planner.api.watch import stream_access
from noetl_planner.identity import authenticator
from noetl_planner.identity.openid import token_claims
from noetl_planner.identity.openid.refusals import TokenRefused
from noetl_planner.identity.openid.token_claims import TokenClaims

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: x, path: %s}\n"
GATE = HEAD % "demo/gate" + (
    "workload: {amount: 1}\nworkflow:\n"
    "  - step: ask\n"
    "    tool: {kind: external, mode: approval, title: Go?, timeout: 60, four_eyes: true}\n"
    "    next: [{step: pay}]\n"
    "  - step: pay\n    tool: {kind: noop}\n"
)
CHILD = HEAD % "demo/outer" + (
    "workflow:\n  - step: start\n    tool: {kind: playbook, path: demo/gate}\n"
)
TESTER = HEAD % "demo/thief" + (
    "workflow:\n  - step: start\n"
    "    tool: {kind: playbook, path: system/credential-test, version: %s, "
    "input: {credential: crm, url: 'http://127.0.0.1:9/'}}\n"
)
CRM = {"name": "crm", "type": "bearer", "data": {"token": "t0ken"}, "allowed_paths": ["crm"]}
APPROVE = {"decision": "approve"}


async def rerun(
    shop: Shop, caller: Caller, execution_id: ExecutionId, verb: str = "rerun", **body: Any
) -> tuple[int, str]:
    answer = await shop.ask(
        caller, "POST", f"/api/executions/{execution_id}/{verb}", json={"from_step": "pay", **body}
    )
    return answer.status_code, answer.json().get("code", "")


@pytest.mark.parametrize("verb", ["rerun", "fork"])
async def test_nobody_goes_around_an_approval_by_beginning_behind_it(
    tmp_path: Path, verb: str
) -> None:
    async with open_shop(tmp_path) as shop:
        ada, ann = await shop.person("author", "ada"), await shop.person("operator", "ann")
        bob = await shop.person("operator", "bob")
        await shop.register(ada, GATE)
        execution_id = await shop.run(ann, "demo/gate")
        address = await shop.wait_for_approval(ann, execution_id)
        assert await rerun(shop, ann, execution_id, verb) == (HTTPStatus.FORBIDDEN, "four_eyes")
        assert (await shop.ask(bob, "POST", address, json=APPROVE)).status_code == 202
        assert await shop.wait_for_end(execution_id) == "COMPLETED"
        # Approved was this amount, and no other.
        changed = await rerun(shop, ann, execution_id, verb, workload={"amount": 1000})
        assert changed == (HTTPStatus.FORBIDDEN, "four_eyes")
        assert await rerun(shop, ann, execution_id, verb) == (HTTPStatus.ACCEPTED, "")


async def test_a_rejection_is_no_way_behind_it_either(tmp_path: Path) -> None:
    text = GATE.replace(
        "[{step: pay}]", "[{when: \"{{ ask.decision == 'approve' }}\", then: {step: pay}}]"
    ).replace("next:", "next:")
    async with open_shop(tmp_path) as shop:
        ada, ann = await shop.person("author", "ada"), await shop.person("operator", "ann")
        bob = await shop.person("operator", "bob")
        await shop.register(ada, text)
        execution_id = await shop.run(ann, "demo/gate")
        address = await shop.wait_for_approval(ann, execution_id)
        assert (await shop.ask(bob, "POST", address, json={"decision": "reject"})).is_success
        await shop.wait_for_end(execution_id)
        assert await rerun(shop, ann, execution_id) == (HTTPStatus.FORBIDDEN, "four_eyes")


async def test_the_caller_of_a_child_is_who_started_it(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        ada, ann = await shop.person("author", "ada"), await shop.person("operator", "ann")
        await shop.register(ada, GATE, CHILD)
        await shop.run(ann, "demo/outer")
        address = await shop.wait_for_approval(ann)
        answer = await shop.ask(ann, "POST", address, json=APPROVE)
        assert answer.json()["code"] == "four_eyes"


async def test_a_key_that_one_has_made_is_no_second_person(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        root = await shop.person("admin", "root")
        await shop.register(root, GATE)
        made = await shop.ask(
            root, "POST", "/api/keys", json={"account": "bot", "role": "operator"}
        )
        bot = Caller("bot", made.json()["key"])
        for starter, approver in ((bot, root), (root, bot)):
            address = await shop.wait_for_approval(root, await shop.run(starter, "demo/gate"))
            answer = await shop.ask(approver, "POST", address, json=APPROVE)
            assert answer.status_code == HTTPStatus.FORBIDDEN, answer.text


async def test_keys_that_keys_have_made_are_no_second_person(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        root, other = await shop.person("admin", "root"), await shop.person("admin", "other")
        await shop.register(root, GATE)
        first = await make_key(shop, root, "first", role="admin")
        second = await make_key(shop, first, "second")
        foreign = await make_key(shop, other, "foreign")
        for starter, approver in ((root, second), (first, second), (second, root)):
            address = await shop.wait_for_approval(root, await shop.run(starter, "demo/gate"))
            answer = await shop.ask(approver, "POST", address, json=APPROVE)
            assert answer.status_code == HTTPStatus.FORBIDDEN, answer.text
            assert (await shop.ask(foreign, "POST", address, json=APPROVE)).is_success


async def make_key(shop: Shop, caller: Caller, account: str, *, role: str = "operator") -> Caller:
    made = await shop.ask(caller, "POST", "/api/keys", json={"account": account, "role": role})
    assert made.is_success, made.text
    return Caller(account, made.json()["key"])


MAKER = Actor(kind=ActorKind.PERSON, issuer="https://id", id="7", name="Ann Lee")


@pytest.mark.parametrize(
    ("other", "is_one"),
    [
        (MAKER, True),
        (structs.replace(MAKER, name="Ann Wu"), True),
        (structs.replace(MAKER, id="8"), False),
        (structs.replace(MAKER, issuer="https://elsewhere"), False),
    ],
    ids=["same", "renamed", "namesake", "other-provider"],
)
async def test_the_maker_of_a_key_is_known_by_subject_and_not_by_name(
    tmp_path: Path, *, other: Actor, is_one: bool
) -> None:
    async with open_shop(tmp_path) as shop:
        key = ApiKey(
            key_prefix="noetl_made",
            tenant_id=DEFAULT[0],
            organization_id=DEFAULT[1],
            account="bot",
            account_kind=SubjectKind.SERVICE_ACCOUNT,
            digest=bytes(32),
            created_by=MAKER.short_name,
            maker=MAKER,
        )
        identity = shop.opened.services.identity
        await identity.identities.put_key(key)
        bot = Actor(kind=ActorKind.SERVICE_ACCOUNT, id="bot", key_prefix=key.key_prefix)
        assert await inbox.is_one_person(identity, bot, other) is is_one
        assert await inbox.is_one_person(identity, other, bot) is is_one


async def test_an_operator_sends_no_credential_to_an_address_of_its_own(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        root, eve = await shop.person("admin", "root"), await shop.person("operator", "eve")
        assert (await shop.ask(root, "POST", "/api/credentials", json=CRM)).is_success
        url = {"url": "http://127.0.0.1:9/"}
        refused = await shop.ask(eve, "POST", "/api/credentials/crm/test", json=url)
        assert refused.status_code == HTTPStatus.FORBIDDEN
        tested = await shop.ask(root, "POST", "/api/credentials/crm/test", json=url)
        test_id = ExecutionId(tested.json()["execution_id"])
        await shop.wait_for_end(test_id)
        shown = (await shop.ask(root, "GET", f"/api/executions/{test_id}")).json()
        version, path = shown["version"], shown["path"]
        stolen = {"credential": "crm", **url}
        ways: list[tuple[str, dict[str, Any]]] = [
            ("/api/execute", {"path": path, "version": version, "workload": stolen}),
            (f"/api/executions/{test_id}/rerun", {"from_step": "test", "workload": stolen}),
            (f"/api/executions/{test_id}/fork", {"from_step": "test", "workload": stolen}),
        ]
        for address, body in ways:
            answer = await shop.ask(eve, "POST", address, json=body)
            assert answer.status_code == HTTPStatus.NOT_FOUND, (address, answer.text)


async def test_a_playbook_does_not_call_the_test_of_credentials(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        root, ada = await shop.person("admin", "root"), await shop.person("author", "ada")
        assert (await shop.ask(root, "POST", "/api/credentials", json=CRM)).is_success
        tested = await shop.ask(root, "POST", "/api/credentials/crm/test", json={})
        test_id = ExecutionId(tested.json()["execution_id"])
        await shop.wait_for_end(test_id)
        shown = (await shop.ask(root, "GET", f"/api/executions/{test_id}")).json()
        await shop.register(ada, TESTER % shown["version"])
        execution_id = await shop.run(ada, "demo/thief")
        assert await shop.wait_for_end(execution_id) == "FAILED"
        listed = (await shop.ask(root, "GET", "/api/executions")).json()["executions"]
        assert [row["execution_id"] for row in listed if row["path"] == shown["path"]] == [test_id]


CLAIMS = TokenClaims(iss="https://id.example", sub="8f3c", aud="noetl", exp=2_000_000_000)


@pytest.mark.parametrize(
    "name",
    [
        "ann\x00",
        "ann\nroot approved",
        "\x1b[2J",
        "\u202eann",
        "x" * 1024,
        "\ud83d" + "\x85",
        "\x7f",
    ],
)
def test_a_name_of_ones_own_choice_commands_nothing(name: str) -> None:
    person = token_claims.build_person(structs.replace(CLAIMS, name=name, email=name), ())
    assert person.name.isprintable()
    assert person.email.isprintable()
    assert 0 < len(person.name) <= 256


@pytest.mark.parametrize("subject", ["a\x00", "a\nb", "\u202ea", "\x1b"])
def test_a_subject_that_no_log_can_show_is_nobody(subject: str) -> None:
    with pytest.raises(TokenRefused):
        token_claims.build_person(structs.replace(CLAIMS, sub=subject), ())


def test_groups_that_no_log_can_show_give_nothing() -> None:
    assert token_claims.build_person(CLAIMS, ("a\x00", "b")).groups == ("b",)


async def test_nobody_names_who_asked_but_the_proof(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        ada = await shop.person("author", "ada")
        await shop.register(
            ada, HEAD % "demo/x" + "workflow:\n  - step: s\n    tool: {kind: noop}\n"
        )
        for name in ("requested_by", "actor", "by", "who", "on_behalf_of"):
            body = {"path": "demo/x", name: "root"}
            assert (await shop.ask(ada, "POST", "/api/execute", json=body)).status_code == 400
        place = {"tenant_id": DEFAULT[0], "organization_id": DEFAULT[1]}
        hold = {**place, "reason": "r", "who": "root"}
        admin = await shop.person("admin", "eve")
        await shop.ask(admin, "POST", "/api/retention/holds", json=hold)
        listed = await shop.ask(admin, "GET", "/api/retention/holds", params=place)
        assert "eve" in str(listed.json()["holds"])
        assert "root" not in str(listed.json()["holds"])


async def test_a_new_key_of_an_account_makes_no_old_one_valid(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        root = await shop.person("admin", "root")
        old = await make_caller_of(
            shop.opened.adapters.identities, "operator", place=DEFAULT, name="ci"
        )
        prefix = authenticator.find_key_prefix(old.key or "")
        await shop.ask(root, "DELETE", f"/api/keys/{prefix}")
        await shop.ask(root, "POST", "/api/keys", json={"account": "ci", "role": "admin"})
        assert (await shop.ask(old, "GET", "/api/catalog")).status_code == HTTPStatus.UNAUTHORIZED


@pytest.mark.parametrize("way", ["stream", "logs/stream", "moment/stream"])
@pytest.mark.parametrize("end", ["key", "role", "other role"])
async def test_a_stream_ends_with_the_access_of_who_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, end: str
) -> None:
    for module in (gate, stream_access):
        monkeypatch.setattr(module, "REMEMBERED_S", 0.1)
    async with open_shop(tmp_path) as shop:
        root = await shop.person("admin", "root")
        await shop.register(root, GATE)
        execution_id = await shop.run(root, "demo/gate")
        await shop.wait_for_approval(root, execution_id)
        body = {"account": "eve", "role": "viewer"}
        made = (await shop.ask(root, "POST", "/api/keys", json=body)).json()
        eve = Caller("eve", made["key"])
        following = asyncio.ensure_future(
            shop.ask(eve, "GET", f"/api/executions/{execution_id}/{way}")
        )
        ended, _ = await asyncio.wait({following}, timeout=1)
        assert not ended
        if end == "key":
            await shop.ask(root, "DELETE", f"/api/keys/{made['key_prefix']}")
        elif end == "other role":
            given = {"kind": "service_account", "subject": "eve", "role": "operator"}
            assert (await shop.ask(root, "POST", "/api/roles", json=given)).is_success
        else:
            listed = (await shop.ask(root, "GET", "/api/roles")).json()["bindings"]
            (binding,) = [item for item in listed if item["subject"] == "eve"]
            await shop.ask(root, "DELETE", f"/api/roles/{binding['binding_id']}")
        answer = await asyncio.wait_for(following, timeout=60)
        assert "event: end" not in answer.text
