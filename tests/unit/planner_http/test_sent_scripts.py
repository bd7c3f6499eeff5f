"""Scripts that are sent with a playbook: checked again, and kept in its canonical form."""

from base64 import b64decode
from typing import Any

import pytest
from tests.support.api import ApiWorld
from tests.unit.planner_http.conftest import Api

from noetl_playbook.sections.script_files import SCRIPT_BYTES_MAX

PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: a, path: a}
workflow:
  - {step: start, tool: {kind: python, script: {uri: lib/a.py}}}
"""


async def script_of(api: Api, version: int) -> dict[str, Any]:
    shown = (await api.get(f"/api/catalog/a?version={version}")).json()
    script = shown["model"]["workflow"][0]["tool"][0]["fields"]["script"]
    assert isinstance(script, dict)
    return script


async def test_a_registered_playbook_holds_what_was_sent(api: Api) -> None:
    body = {"content": PLAYBOOK, "scripts": {"lib/a.py": "result = 1", "unused.py": ""}}
    answer = await api.post("/api/catalog/register", json=body)
    assert answer.status_code == 200, answer.text
    found = await script_of(api, answer.json()["version"])
    assert b64decode(found["source"]["code_b64"]) == b"result = 1"


async def test_a_draft_holds_what_was_sent(api: Api, world: ApiWorld) -> None:
    assert world
    first, second = [
        await api.post("/api/execute", json={"content": PLAYBOOK, "scripts": {"lib/a.py": text}})
        for text in ("result = 1", "result = 2")
    ]
    assert (first.status_code, second.status_code) == (202, 202), first.text
    assert first.json()["version"] != second.json()["version"]
    found = await script_of(api, second.json()["version"])
    assert b64decode(found["source"]["code_b64"]) == b"result = 2"


async def test_without_scripts_the_name_is_left_to_workers(api: Api) -> None:
    answer = await api.post("/api/catalog/register", json={"content": PLAYBOOK})
    assert answer.status_code == 200
    assert await script_of(api, 1) == {"uri": "lib/a.py"}


@pytest.mark.parametrize(
    ("scripts", "status", "says"),
    [
        ({}, 422, "was not sent with the playbook"),
        ({"a.py": "x"}, 422, "was not sent with the playbook"),
        ({"lib/a.py": "x" * (SCRIPT_BYTES_MAX + 1)}, 422, "at most"),
        ({"lib/a.py": 1}, 400, ""),
        ({f"{place}.py": "" for place in range(101)}, 400, ""),
    ],
)
async def test_what_cannot_be_carried_is_refused(
    api: Api, scripts: dict[str, Any], status: int, says: str
) -> None:
    body = {"content": PLAYBOOK, "scripts": scripts}
    answer = await api.post("/api/catalog/register", json=body)
    assert answer.status_code == status, answer.text
    assert says in answer.text
