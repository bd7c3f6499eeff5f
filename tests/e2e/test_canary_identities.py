"""The owner's token and API keys lie in the two files that are made for them, and nowhere else."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.e2e.canaries import dump, leaks, unpacked
from tests.support.files import read_files
from tests.support.stack import Stack, running_stack

# Shows nothing by itself, unlike the client of other tests.
http = httpx.Client(limits=httpx.Limits(max_keepalive_connections=0), trust_env=False, timeout=60)
ON = {"NOETL_AUTH": "on"}
PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: canary, path: e2e/canary}
workload: {seen: null}
workflow:
  - step: start
    tool: {kind: python, code: "return {'seen': str(seen)}", input: {seen: "{{ workload.seen }}"}}
"""
HOOK = {"path": "e2e/canary", "unsigned": True, "inputs": {"seen": "{{ headers }}"}}
# Where a token of the owner may lie.
OWN_FILES = {"token", "secrets.json"}


@pytest.fixture
def own_stack(tmp_path: Path) -> Iterator[Stack]:
    with running_stack(
        tmp_path / "home", "--no-s3", "--workers", "1", "--set", "LOG_LEVEL=DEBUG", environ=ON
    ) as opened:
        yield opened


def type_command(stack: Stack, *arguments: str, **environ: str) -> str:
    done = subprocess.run(  # noqa: S603 - our own command line
        [sys.executable, "-m", "noetl_cli", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env={
            "PATH": os.defpath,
            "HOME": str(stack.folder.parent),
            "NOETL_HOME": str(stack.folder),
            **environ,
        },
    )
    return done.stdout + done.stderr


def use_token(stack: Stack, token: str) -> list[httpx.Response]:
    """Show a token in its place, and where somebody may put it by mistake."""
    url, bearer = stack.url("api"), {"Authorization": f"Bearer {token}"}
    hooked = http.post(f"{url}/api/webhooks/canary", json={}, headers=bearer)
    run = {"path": "e2e/canary", "workload": {"seen": "nothing"}}
    return [
        hooked,
        http.post(f"{url}/api/execute", json=run, headers={**bearer, "Prefer": "wait=30"}),
        http.get(f"{url}/api/audit", headers=bearer),
        http.get(f"{url}/api/auth/whoami", headers=bearer),
        http.get(f"{url}/api/health", headers=bearer),
        http.get(f"{url}/api/executions", headers={"Authorization": f"Basic {token}"}),
        http.get(f"{url}/api/executions", headers={"Cookie": f"noetl_session={token}"}),
        http.get(f"{url}/api/catalog", headers={"X-NoETL-Tenant": token, **bearer}),
        http.get(f"{url}/api/executions", headers={"Authorization": f"Bearer {token}x"}),
        http.delete(f"{url}/api/keys/{token}", headers=bearer),
        http.get(f"{url}/api/executions/{token}", headers=bearer),
        http.post(f"{url}/api/callbacks/{token}", json={}),
    ]  # fmt: skip


def unpack_files(stack: Stack) -> list[bytes]:
    return [
        unpacked(data)
        for file, data in read_files(stack.folder)
        if str(file.relative_to(stack.folder)) not in OWN_FILES
    ]


def test_tokens_and_keys_are_nowhere_but_in_their_files(own_stack: Stack) -> None:
    url, owner = own_stack.url("api"), (own_stack.folder / "token").read_text().strip()
    assert http.get(f"{url}/api/executions").status_code == 401
    bearer = {"Authorization": f"Bearer {owner}"}
    kept = http.post(
        f"{url}/api/catalog/register",
        content=PLAYBOOK,
        headers={**bearer, "Content-Type": "text/yaml"},
    )
    assert kept.status_code == 200, kept.text
    assert http.put(f"{url}/api/webhooks/canary", json=HOOK, headers=bearer).status_code == 200
    made = [
        http.post(f"{url}/api/keys", json={"account": role, "role": role}, headers=bearer).json()
        for role in ("viewer", "operator", "admin")
    ]
    keys = [str(item["key"]) for item in made]
    wrong = f"{keys[0][:-6]}wrong1"
    said = [type_command(own_stack, "ls"), type_command(own_stack, "whoami")]
    for token in (*keys, wrong, owner):
        said += [
            type_command(own_stack, *words, NOETL_API_KEY=token)
            for words in (["ls"], ["whoami"], ["audit", "log"], ["key", "ls"])
        ]
    by_token = {token: use_token(own_stack, token) for token in (*keys, owner, wrong)}
    shown = [answer for answers in by_token.values() for answer in answers]
    assert [item.status_code for item in by_token[keys[0]][:2]] == [403, 403]
    assert [item.status_code for item in by_token[owner][:2]] == [202, 200]
    assert [item.status_code for item in by_token[wrong][:2]] == [401, 401]
    http.delete(f"{url}/api/keys/{made[0]['key_prefix']}", headers=bearer)
    database = asyncio.run(dump(own_stack.url("postgres"))).encode()
    # What is looked through holds what was done.
    assert b"key.created" in database
    assert b"access.denied" in database
    files = unpack_files(own_stack)
    assert any(b"e2e/canary" in data for data in files)
    # Only the part behind the prefix, which is no secret, opens anything.
    secrets = [owner, *(key[len("noetl_") + 13 :] for key in (*keys, wrong))]
    # Where it may lie it is found, so that it would be found elsewhere.
    assert leaks([(own_stack.folder / name).read_bytes() for name in OWN_FILES], [owner])
    places = {
        "PostgreSQL": [database],
        "files": files,
        "terminal": [text.encode() for text in said],
        "answers": [
            item.content
            for item in shown
            if item.request.url.path.startswith("/api/") and item.is_success
        ],
    }
    found = {place: leaks(texts, secrets) for place, texts in places.items()}
    assert not any(found.values()), found
