"""Who may not read payloads sees what happened, and none of the data, on every way to events."""

from http import HTTPStatus
from pathlib import Path

import pytest
from tests.support.guarded_shop import open_shop

DATA = "salary-of-ann"
PLAYBOOK = f"""\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: pay, path: hr/pay}}
workload: {{who: {DATA}}}
workflow:
  - step: start
    tool:
      kind: python
      args: {{who: "{{{{ workload.who }}}}"}}
      code: "result = {{'paid': args['who']}}"
    set: {{ctx.paid: "{{{{ output.data.paid }}}}"}}
"""
WAYS = ("", "/events", "/status", "/stream", "/steps", "/stages", "/frames")


@pytest.mark.parametrize("way", WAYS)
async def test_a_viewer_sees_no_data(tmp_path: Path, way: str) -> None:
    async with open_shop(tmp_path) as shop:
        root = await shop.person("admin", "root")
        await shop.register(root, PLAYBOOK)
        execution_id = await shop.run(root, "hr/pay")
        await shop.wait_for_end(execution_id)
        address = f"/api/executions/{execution_id}{way}"
        viewer, operator = await shop.person("viewer", "eve"), await shop.person("operator", "bob")
        hidden = await shop.ask(viewer, "GET", address)
        assert hidden.status_code == HTTPStatus.OK, hidden.text
        assert DATA not in hidden.text
        shown = await shop.ask(operator, "GET", address)
        assert shown.status_code == HTTPStatus.OK
        assert (DATA in shown.text) == (way in {"", "/events", "/status", "/stream"})


async def test_a_refused_path_is_in_the_audit_log(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        root = await shop.person("admin", "root")
        eve = await shop.person("author", "eve", path_prefix="sales")
        refused = await shop.ask(
            eve,
            "POST",
            "/api/catalog/register",
            content=PLAYBOOK,
            headers={"Content-Type": "text/yaml"},
        )
        assert refused.status_code == HTTPStatus.FORBIDDEN
        log = (await shop.ask(root, "GET", "/api/audit")).text
        assert "access.denied" in log
        assert "/api/catalog/register" in log


async def test_a_new_version_of_a_credential_keeps_who_may_use_it(tmp_path: Path) -> None:
    body = {"name": "shop", "type": "bearer", "data": {"token": "first-value"}}
    async with open_shop(tmp_path) as shop:
        root = await shop.person("admin", "root")
        for more, allowed in (
            ({"allowed_paths": ["hr"]}, ["hr"]),
            ({}, ["hr"]),
            ({"allowed_paths": []}, []),
        ):
            kept = await shop.ask(root, "POST", "/api/credentials", json={**body, **more})
            assert kept.json()["allowed_paths"] == allowed, kept.text


@pytest.mark.parametrize(
    ("address", "body"),
    [
        (
            "/api/roles",
            {"kind": "service_account", "subject": "x", "role": "author", "path_prefix": "../x"},
        ),
        (
            "/api/roles",
            {"kind": "service_account", "subject": "x", "role": "worker", "path_prefix": "sales"},
        ),
        ("/api/keys", {"account": "x", "path_prefix": "sales"}),
        ("/api/keys", {"account": "x", "role": "viewer", "path_prefix": "a//b"}),
        (
            "/api/credentials",
            {"name": "x", "type": "bearer", "data": {"token": "t"}, "allowed_paths": ["../.."]},
        ),
    ],
)
async def test_a_folder_that_holds_for_nothing_is_refused(
    tmp_path: Path, address: str, body: dict[str, object]
) -> None:
    async with open_shop(tmp_path) as shop:
        root = await shop.person("admin", "root")
        answer = await shop.ask(root, "POST", address, json=body)
        assert answer.status_code == HTTPStatus.BAD_REQUEST, answer.text
