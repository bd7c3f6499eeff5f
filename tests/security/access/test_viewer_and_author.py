"""Who sees a whole tenant and writes one folder of it: every route by path, inside and outside."""

from http import HTTPStatus
from typing import Any, NamedTuple

import pytest
from tests.security.access.test_folder_walls import send
from tests.security.access.test_folders_and_tenants import INSIDE, OUTSIDE, SOURCE, make_shop
from tests.support.api import ApiWorld
from tests.support.identities import OWN, OWNER, Caller, make_caller, open_client

from noetl_contracts.identity.role_bindings import LOCAL_ISSUER, RoleBinding, SubjectKind
from noetl_planner.identity.permissions import PERMISSIONS_BY_ROLE, Role
from noetl_planner.identity.route_rules import RULES, Reach

READS_INCREMENTS = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: x, path: {folder}/increments}}
workflow:
  - step: load
    incremental: {{cursor: n, from: state.orders, initial: 0}}
    tool: {{kind: python, code: "return {{'rows': []}}"}}
"""
STATE = {"name": "orders", "value": 1, "who": "ann", "reason": "test"}
# Routes by path that a viewer may not use and an author may, each with its body about `{folder}`.
CRON = {"path": "{folder}/load", "cron": "0 3 * * *"}
WALK: dict[tuple[str, str], Any] = {
    ("POST", "/api/execute"): {"path": "{folder}/load"},
    ("POST", "/api/executions"): {"path": "{folder}/load"},
    ("POST", "/api/catalog/register"): {"content": "{source}"},
    ("POST", "/api/catalog/register/folder"): {"files": [{"name": "a", "content": "{source}"}]},
    ("POST", "/api/executions/{execution_id}/cancel"): {},
    ("POST", "/api/executions/{execution_id}/pause"): {},
    ("POST", "/api/executions/{execution_id}/resume"): {},
    ("POST", "/api/executions/{execution_id}/rerun"): {"from_step": "start"},
    ("POST", "/api/executions/{execution_id}/fork"): {},
    ("POST", "/api/executions/{execution_id}/counterfactual"): {"content": "{source}"},
    ("GET", "/api/executions/{execution_id}/counterfactual"): None,
    ("GET", "/api/executions/{execution_id}/items"): None,
    ("GET", "/api/executions/{execution_id}/items/{step}"): None,
    ("GET", "/api/executions/{execution_id}/frames/{frame_id}/rows"): None,
    ("GET", "/api/executions/{execution_id}/trace/{step}"): None,
    ("GET", "/api/vars/{execution_id}"): None,
    ("GET", "/api/vars/{execution_id}/{name}"): None,
    ("PUT", "/api/vars/{execution_id}/{name}"): {"value": 1},
    ("DELETE", "/api/vars/{execution_id}/{name}"): None,
    ("GET", "/api/result/{execution_id}/list"): None,
    ("GET", "/api/result/{execution_id}/stats"): None,
    ("GET", "/api/result/{execution_id}/{step}"): None,
    ("GET", "/api/executions/{execution_id}/result/{step}"): None,
    ("PUT", "/api/state/value"): {"path": "{folder}/increments", **STATE},
    ("DELETE", "/api/state/value"): None,
    ("POST", "/api/schedules"): {"name": "new_{folder}", **CRON},
    ("PUT", "/api/schedules/{name}"): CRON,
    ("POST", "/api/schedules/{name}/pause"): None,
    ("POST", "/api/schedules/{name}/resume"): None,
    ("POST", "/api/schedules/{name}/run"): None,
    ("DELETE", "/api/schedules/{name}"): None,
    ("PUT", "/api/triggers/{name}"): {"path": "{folder}/load", "subject": "new.{folder}"},
    ("DELETE", "/api/triggers/{name}"): None,
    ("PUT", "/api/webhooks/{name}"): {"path": "{folder}/load", "unsigned": True},
    ("DELETE", "/api/webhooks/{name}"): None,
}
# What a route cannot do without.
QUERIES = {
    ("GET", "/api/executions/{execution_id}/counterfactual"): "?other=1",
    ("GET", "/api/executions/{execution_id}/frames/{frame_id}/rows"): "?side=input",
}
# Nothing of it is about a playbook yet: chunks are used by a start, which is held to its path.
OF_NO_PATH = {("POST", "/api/files/chunks")}
# There is nothing of this kind to be shown of the execution: that is said, and not "forbidden".
EMPTY = {HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY}
AUTHORS_ONLY = PERMISSIONS_BY_ROLE[Role.AUTHOR] - PERMISSIONS_BY_ROLE[Role.VIEWER]


class Folder(NamedTuple):
    """What there is in a folder."""

    folder: str
    execution_id: str
    # Of its schedule, trigger and webhook.
    name: str
    step: str = "start"
    frame_id: str = "72057594037927936"


SALES, SALESFORCE = Folder("sales", INSIDE, "mine"), Folder("salesforce", OUTSIDE, "theirs")


def write_address(method: str, route: str, place: Folder) -> str:
    """Write the address of what is in a folder; what is put there has a name of its own."""
    name = f"new_{place.folder}" if method == "PUT" else place.name
    if (method, route) == ("DELETE", "/api/state/value"):
        return f"{route}?path={place.folder}/increments&name=orders&who=ann&reason=test"
    query = QUERIES.get((method, route), "")
    return route.format(**{**place._asdict(), "name": name}) + query


def fill(value: Any, place: Folder) -> Any:
    """Write the names of a folder into a sample."""
    if isinstance(value, dict):
        return {name: fill(item, place) for name, item in value.items()}
    if isinstance(value, list):
        return [fill(item, place) for item in value]
    if not isinstance(value, str):
        return value
    if value == "{source}":
        return SOURCE.format(path=f"{place.folder}/load") + "# changed\n"
    return value.format(**place._asdict())


async def make_mixed(world: ApiWorld, name: str = "ann") -> Caller:
    """A viewer of the whole organization who is the author of one folder."""
    caller = await make_caller(world, "viewer", name=name)
    await world.identities.put_binding(
        RoleBinding(
            binding_id=f"4711{len(world.store.role_bindings)}",
            tenant_id=OWN[0],
            organization_id=OWN[1],
            subject_kind=SubjectKind.SERVICE_ACCOUNT,
            issuer=LOCAL_ISSUER,
            subject=name,
            role="author",
            path_prefix="sales",
        )
    )
    return caller


async def furnish(world: ApiWorld) -> Any:
    """Two folders with all that starts their playbooks."""
    app = await make_shop(world)
    for place in (SALES, SALESFORCE):
        text = {"content": READS_INCREMENTS.format(folder=place.folder)}
        path = {"path": f"{place.folder}/load"}
        for method, address, body in (
            ("POST", "/api/catalog/register", text),
            ("PUT", "/api/state/value", {"path": f"{place.folder}/increments", **STATE}),
            ("PUT", f"/api/schedules/{place.name}", {**path, "cron": "0 3 * * *"}),
            ("PUT", f"/api/triggers/{place.name}", {**path, "subject": f"of.{place.folder}"}),
            ("PUT", f"/api/webhooks/{place.name}", {**path, "unsigned": True}),
        ):
            status, answer = await send(app, OWNER, method, address, body)
            assert status == HTTPStatus.OK, answer
    return app


@pytest.fixture
def world() -> ApiWorld:
    return ApiWorld()


def test_every_route_by_path_that_an_author_has_and_a_viewer_not_is_walked() -> None:
    by_path = {
        route
        for route, rule in RULES.items()
        if rule.reach is Reach.PATHS and rule.permission in AUTHORS_ONLY
    }
    assert set(WALK) | OF_NO_PATH == by_path


@pytest.mark.parametrize(("method", "path"), WALK)
async def test_what_works_by_path_works_in_the_folder_alone(
    world: ApiWorld, method: str, path: str
) -> None:
    app = await furnish(world)
    ann = await make_mixed(world)
    body = WALK[method, path]
    before = dict(world.store.request_by_id)
    address = write_address(method, path, SALESFORCE)
    status, answer = await send(app, ann, method, address, fill(body, SALESFORCE))
    assert (status, answer.get("code")) == (HTTPStatus.FORBIDDEN, "forbidden"), answer
    # It is seen, so that what is missing is said: the permission, and where.
    assert "ann may not " in answer["detail"]
    assert "salesforce" in answer["detail"]
    assert world.store.request_by_id == before
    address = write_address(method, path, SALES)
    status, answer = await send(app, ann, method, address, fill(body, SALES))
    assert status < HTTPStatus.BAD_REQUEST or status in EMPTY, answer
    if method != "GET" and "vars" not in path and "counterfactual" not in path:
        assert status < HTTPStatus.BAD_REQUEST, answer


@pytest.mark.parametrize(
    ("method", "path"),
    [
        route
        for route, rule in RULES.items()
        if rule.reach is Reach.WHOLE and rule.permission in AUTHORS_ONLY
    ],
)
async def test_what_is_about_all_playbooks_is_refused(
    world: ApiWorld, method: str, path: str
) -> None:
    app = await furnish(world)
    address = path.replace("{", "").replace("}", "")
    status, answer = await send(app, await make_mixed(world), method, address, {})
    assert (status, answer["code"]) == (HTTPStatus.FORBIDDEN, "forbidden"), answer


@pytest.mark.parametrize(
    "path",
    [
        "/api/catalog/{folder}/load",
        "/api/playbooks/{folder}/load/plan",
        "/api/executions/{execution_id}",
        "/api/executions/{execution_id}/status",
        "/api/executions/{execution_id}/events",
        "/api/executions/{execution_id}/steps",
        "/api/executions/{execution_id}/moment",
        "/api/executions/{execution_id}/difference?with={execution_id}",
        "/api/schedules/{name}",
        "/api/triggers/{name}",
        "/api/webhooks/{name}",
    ],
)
async def test_what_a_viewer_sees_is_seen_inside_and_outside(world: ApiWorld, path: str) -> None:
    app = await furnish(world)
    ann = await make_mixed(world)
    for place in (SALES, SALESFORCE):
        status, answer = await send(app, ann, "GET", write_address("GET", path, place))
        assert status == HTTPStatus.OK, answer


async def test_values_are_shown_of_runs_in_the_folder_alone(world: ApiWorld) -> None:
    app = await furnish(world)
    ann = await make_mixed(world)
    shown = [
        (await send(app, ann, "GET", f"/api/executions/{place.execution_id}/events"))[1]["events"][
            0
        ]
        for place in (SALES, SALESFORCE)
    ]
    assert [("workload" in event["context"]) for event in shown] == [True, False]


async def test_drafts_run_in_the_folder_and_are_checked_everywhere(world: ApiWorld) -> None:
    app = await furnish(world)
    ann = await make_mixed(world)
    for place, wanted in ((SALES, HTTPStatus.ACCEPTED), (SALESFORCE, HTTPStatus.FORBIDDEN)):
        text = {"content": fill("{source}", place)}
        assert (await send(app, ann, "POST", "/api/execute", text))[0] == wanted
        status, answer = await send(app, ann, "POST", "/api/catalog/check", text)
        assert status == HTTPStatus.OK, answer


async def test_what_it_has_put_in_the_folder_acts_for_it(world: ApiWorld) -> None:
    app = await furnish(world)
    ann = await make_mixed(world)
    body = {"path": "sales/load", "cron": "0 3 * * *"}
    assert (await send(app, ann, "PUT", "/api/schedules/anns", body))[0] == HTTPStatus.OK
    _, shown = await send(app, OWNER, "GET", "/api/schedules/anns")
    assert (shown["author"], shown["suspended"]) == ("ann", None)


async def test_a_run_in_the_folder_has_a_parent_that_is_seen(world: ApiWorld) -> None:
    app = await furnish(world)
    ann = await make_mixed(world)
    body = {"path": "sales/load", "parent_execution_id": OUTSIDE}
    status, answer = await send(app, ann, "POST", "/api/execute", body)
    assert status == HTTPStatus.ACCEPTED, answer
    # Who does not see it has no such parent.
    eve = await make_caller(world, "author", path_prefix="sales", name="eve")
    assert (await send(app, eve, "POST", "/api/execute", body))[0] == HTTPStatus.NOT_FOUND


async def test_a_key_that_began_a_run_outside_names_it_to_who_sees_it(world: ApiWorld) -> None:
    app = await furnish(world)
    _, begun = await send(
        app, OWNER, "POST", "/api/execute", {"path": "salesforce/load", "idempotency_key": "k"}
    )
    again = {"path": "sales/load", "idempotency_key": "k"}
    eve = await make_caller(world, "author", path_prefix="sales", name="eve")
    for caller, is_named in ((await make_mixed(world), True), (eve, False)):
        status, answer = await send(app, caller, "POST", "/api/execute", again)
        assert (status, answer["code"]) == (HTTPStatus.CONFLICT, "idempotency_key_reused")
        assert (begun["execution_id"] in str(answer)) == is_named


async def test_calls_of_webhooks_without_a_signature_are_held_to_the_folder(
    world: ApiWorld,
) -> None:
    app = await furnish(world)
    ann = await make_mixed(world)
    eve = await make_caller(world, "author", path_prefix="sales", name="eve")
    assert (await send(app, ann, "POST", "/api/webhooks/mine", {}))[0] == HTTPStatus.ACCEPTED
    status, answer = await send(app, ann, "POST", "/api/webhooks/theirs", {})
    assert (status, answer["code"]) == (HTTPStatus.FORBIDDEN, "forbidden")
    # What lies outside of all that somebody sees is not there.
    missing = await send(app, eve, "POST", "/api/webhooks/nobodys", {})
    foreign = await send(app, eve, "POST", "/api/webhooks/theirs", {})
    assert missing[0] == foreign[0] == HTTPStatus.NOT_FOUND
    assert foreign[1]["detail"].replace("theirs", "nobodys") == missing[1]["detail"]


async def test_a_key_for_an_account_of_a_folder_opens_that_folder(world: ApiWorld) -> None:
    app = await furnish(world)
    ann = await make_mixed(world)
    body = {"account": "loader", "role": "author", "path_prefix": "sales"}
    assert (await send(app, ann, "POST", "/api/keys", body))[0] == HTTPStatus.FORBIDDEN
    _, made = await send(app, OWNER, "POST", "/api/keys", body)
    loader = Caller("loader", made["key"])
    for place, wanted in ((SALES, HTTPStatus.ACCEPTED), (SALESFORCE, HTTPStatus.NOT_FOUND)):
        path = {"path": f"{place.folder}/load"}
        assert (await send(app, loader, "POST", "/api/execute", path))[0] == wanted
    async with open_client(app, loader) as client:
        listed = (await client.get("/api/catalog")).json()["playbooks"]
    assert {entry["path"] for entry in listed} == {"sales/load", "sales/increments"}
