"""Catalog, credentials, payloads and health over HTTP."""

import base64

from litestar import Litestar
from litestar.testing import AsyncTestClient
from tests.support.api import PLAYBOOK, SECRET_KEY, ApiWorld
from tests.support.storage import ORGANIZATION, TENANT

from noetl_chassis.seals.credential_seal import CredentialSealer
from noetl_contracts import codec
from noetl_contracts.credentials import SealedCredential, build_object_name
from noetl_contracts.errors import Retryable
from noetl_planner.api.app import create_app
from noetl_playbook.model.playbook import Playbook
from noetl_storage.ports.errors import StorageUnavailable

Api = AsyncTestClient[Litestar]
YAML = {"Content-Type": "text/yaml"}


async def test_a_registered_playbook_is_a_version_of_its_path(api: Api) -> None:
    first = await api.post("/api/catalog/register", content=PLAYBOOK, headers=YAML)
    assert first.status_code == 200
    assert (first.json()["path"], first.json()["version"]) == ("demo/hello", 1)
    same = await api.post("/api/catalog/register", json={"content": PLAYBOOK})
    assert same.json()["version"] == 1
    changed = await api.post(
        "/api/catalog/register", content=PLAYBOOK.replace("world", "moon"), headers=YAML
    )
    assert changed.json()["version"] == 2
    shown = (await api.get("/api/catalog/demo/hello?version=1")).json()
    assert shown["source"] == PLAYBOOK
    assert shown["versions"] == [1, 2]
    assert codec.convert_value(shown["model"], Playbook).metadata.path == "demo/hello"
    listed = (await api.get("/api/catalog")).json()["playbooks"]
    assert [(item["path"], item["version"]) for item in listed] == [("demo/hello", 2)]


async def test_a_folder_is_registered_file_by_file_in_one_call(api: Api) -> None:
    other = PLAYBOOK.replace("demo/hello", "demo/other")
    both = "\n---\n".join((other, PLAYBOOK.replace("demo/hello", "demo/third")))
    files = [{"name": "a.yaml", "content": PLAYBOOK}, {"name": "b.yaml", "content": both}]
    answer = await api.post("/api/catalog/register/folder", json={"files": files})
    assert answer.status_code == 200
    found = [
        (file["name"], [(playbook["path"], playbook["version"]) for playbook in file["playbooks"]])
        for file in answer.json()["files"]
    ]
    assert found == [
        ("a.yaml", [("demo/hello", 1)]),
        ("b.yaml", [("demo/other", 1), ("demo/third", 1)]),
    ]


async def test_of_a_folder_with_problems_nothing_is_registered(api: Api) -> None:
    bad = PLAYBOOK.replace("workflow:", "wrkflow:")
    files = [
        {"name": "good.yaml", "content": PLAYBOOK},
        {"name": "bad.yaml", "content": bad},
        {"name": "worse.yaml", "content": "a: [1"},
    ]
    answer = await api.post("/api/catalog/register/folder", json={"files": files})
    assert (answer.status_code, answer.json()["code"]) == (422, "playbook_invalid")
    assert {diagnostic["file"] for diagnostic in answer.json()["diagnostics"]} == {
        "bad.yaml",
        "worse.yaml",
    }
    assert answer.json()["detail"].startswith("bad.yaml: ")
    files = [
        {"name": "one.yaml", "content": PLAYBOOK},
        {"name": "two.yaml", "content": PLAYBOOK + "\n"},
    ]
    answer = await api.post("/api/catalog/register/folder", json={"files": files})
    assert answer.status_code == 400
    assert all(name in answer.json()["detail"] for name in ("one.yaml", "two.yaml", "demo/hello"))
    assert (await api.get("/api/catalog")).json()["playbooks"] == []


async def test_a_playbook_with_errors_is_refused_with_its_diagnostics(api: Api) -> None:
    broken = PLAYBOOK.replace("tool: {kind: noop}", "tool: {kind: nop}")
    answer = await api.post("/api/catalog/register", content=broken, headers=YAML)
    assert answer.status_code == 422
    (problem,) = answer.json()["diagnostics"]
    assert problem["line"] == 7
    assert problem["severity"] == "error"


async def test_text_that_is_not_yaml_is_refused_with_its_place(api: Api) -> None:
    answer = await api.post("/api/catalog/register", content="a: [1\nb: 2\n", headers=YAML)
    assert answer.status_code == 422
    assert answer.json()["diagnostics"][0]["code"] == "E101"


async def test_bytes_that_are_not_text_are_refused(api: Api) -> None:
    answer = await api.post("/api/catalog/register", content=b"\xff\xfe", headers=YAML)
    assert answer.status_code == 400


async def test_an_unknown_playbook_is_a_404(api: Api) -> None:
    answer = await api.get("/api/catalog/no/such")
    assert answer.status_code == 404
    assert "no/such" in answer.json()["detail"]


async def test_a_credential_is_sealed_in_both_stores_and_never_shown(
    api: Api, world: ApiWorld
) -> None:
    body = {"name": "main_db", "type": "postgres", "data": {"host": "h", "password": "s3cr3t!"}}
    answer = await api.post("/api/credentials", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["fields"] == ["host", "password"]
    again = await api.post("/api/credentials", json=body)
    assert again.json()["version"] == 2
    listed = await api.get("/api/credentials")
    shown = await api.get("/api/credentials/main_db")
    assert "s3cr3t!" not in answer.text + again.text + listed.text + shown.text
    data = await world.payloads.find_named(
        build_object_name("main_db", 2), tenant_id=TENANT, organization_id=ORGANIZATION
    )
    assert data is not None
    assert b"s3cr3t!" not in data
    sealed = codec.decode_as(data, SealedCredential)
    opened = CredentialSealer(SECRET_KEY).open_credential(
        sealed, tenant_id=TENANT, organization_id=ORGANIZATION
    )
    assert opened == body["data"]


async def test_an_ended_credential_is_gone_and_can_be_kept_anew(api: Api) -> None:
    body = {"name": "token", "type": "bearer", "data": {"token": "t"}}
    await api.post("/api/credentials", json=body)
    assert (await api.delete("/api/credentials/token")).status_code == 200
    assert (await api.get("/api/credentials/token")).status_code == 404
    assert (await api.get("/api/credentials")).json()["credentials"] == []
    assert (await api.post("/api/credentials", json=body)).json()["version"] == 3


async def test_credentials_of_another_key_are_listed_without_their_fields(
    api: Api, world: ApiWorld
) -> None:
    await api.post("/api/credentials", json={"name": "t", "type": "bearer", "data": {"token": "x"}})
    other = CredentialSealer(base64.b64encode(b"k" * 32).decode())
    async with AsyncTestClient(create_app(world.services(sealer=other))) as stranger:
        (listed,) = (await stranger.get("/api/credentials")).json()["credentials"]
    assert listed["fields"] is None


async def test_a_payload_is_read_by_reference_in_windows(api: Api, world: ApiWorld) -> None:
    ref = await world.payloads.put_payload(
        codec.encode_json(list(range(10))),
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
        media_type="application/json",
    )
    answer = await api.get("/api/result/resolve", params={"ref": ref.uri, "offset": 2, "limit": 3})
    assert answer.json()["data"] == [2, 3, 4]
    assert (answer.json()["total"], answer.json()["has_next"]) == (10, True)


async def test_a_corrupt_payload_is_named_and_not_shown(api: Api, world: ApiWorld) -> None:
    ref = await world.payloads.put_payload(
        b'{"a": 1}', tenant_id=TENANT, organization_id=ORGANIZATION, media_type="application/json"
    )
    (key,) = world.payloads.bytes_by_key
    world.payloads.bytes_by_key[key] = b'{"a": 2}'
    answer = await api.get("/api/result/resolve", params={"ref": ref.uri})
    assert answer.status_code == 502
    assert ref.sha256 in answer.json()["detail"]


async def test_references_that_lead_nowhere_are_refused(api: Api) -> None:
    digest = "0" * 64
    ours = f"noetl://tenant/{TENANT}/org/{ORGANIZATION}/payloads/sha256/"
    for ref, status in (
        ("hello", 400),
        ("noetl://execution/1/result/a/b", 404),
        ("noetl://execution/1/frames/a/b", 400),
        (f"noetl://tenant/x/org/y/payloads/sha256/{digest}", 404),
        (ours + digest, 404),
        (ours + "abc", 400),
    ):
        answer = await api.get("/api/result/resolve", params={"ref": ref})
        assert answer.status_code == status, ref


async def test_health_says_what_is_wrong(api: Api, world: ApiWorld) -> None:
    assert (await api.get("/api/health")).json()["status"] == "ok"
    world.problems["nats"] = "not connected"
    assert (await api.get("/api/health")).json() == {
        "status": "degraded",
        "problems": {"nats": "not connected"},
    }


async def test_the_front_door_and_the_schema_are_there(api: Api) -> None:
    assert (await api.get("/")).json()["name"] == "NoETL planner"
    described = (await api.get("/schema/openapi.json")).json()
    assert "/api/execute" in described["paths"]
    assert (await api.get("/nothing/here")).json()["status"] == 404
    assert (await api.put("/api/execute")).status_code == 405


class _Away:
    def __init__(self, error: Exception) -> None:
        self._error = error

    async def list_playbooks(self, **_: object) -> None:
        raise self._error


async def test_an_unreachable_store_is_a_503_that_says_so(world: ApiWorld) -> None:
    away: Retryable = StorageUnavailable("PostgreSQL at db:5432 does not answer")
    async with AsyncTestClient(create_app(world.services(catalog=_Away(away)))) as client:
        answer = await client.get("/api/catalog")
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert "db:5432" in answer.json()["detail"]


async def test_our_own_defect_is_a_500_without_its_details(world: ApiWorld) -> None:
    broken = _Away(ZeroDivisionError("secret detail"))
    async with AsyncTestClient(create_app(world.services(catalog=broken))) as client:
        answer = await client.get("/api/catalog")
    assert answer.status_code == 500
    assert "secret detail" not in answer.text
    assert "incident" in answer.json()["hint"]
