"""The console as the planner serves it: files, compression, policy, and pages as JSON."""

import json
from http import HTTPStatus
from pathlib import Path

import pytest
from scripts import console_types
from tests.support.api import ApiWorld
from tests.support.identities import make_guarded_app, open_client

from noetl_planner.api.console import console_files, routes
from noetl_planner.api.console.routes import find_json_address, prefers_json
from noetl_planner.identity.route_rules import RULES

SCRIPT = "assets/index-AbC123.js"


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bundle of two files, one of them compressed as well, beside a file that is no part."""
    folder = tmp_path / "bundle"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text("<title>NoETL</title>")
    (folder / SCRIPT).write_text("plain")
    (folder / f"{SCRIPT}.br").write_bytes(b"brotli")
    (folder / f"{SCRIPT}.gz").write_bytes(b"gzip")
    (tmp_path / "secret.txt").write_text("secret")
    monkeypatch.setattr(console_files, "BUNDLE", folder)
    find_file = console_files.find_file
    monkeypatch.setattr(
        console_files, "find_file", lambda name, accepted: find_file(name, accepted, folder)
    )
    monkeypatch.setattr(console_files, "has_bundle", lambda: True)
    return folder


@pytest.mark.parametrize(
    ("accepted", "content", "encoding"),
    [
        ("gzip, br", b"brotli", "br"),
        ("gzip;q=1", b"gzip", "gzip"),
        ("", b"plain", ""),
        ("br;q=0, gzip;q=0.0", b"plain", ""),
    ],
)
async def test_a_file_is_sent_in_the_best_encoding_that_is_accepted(
    bundle: Path, accepted: str, content: bytes, encoding: str
) -> None:
    served = console_files.find_file(SCRIPT, accepted)
    assert served is not None
    assert (served.content, served.encoding) == (content, encoding)


@pytest.mark.parametrize("name", ["../secret.txt", "assets/../../secret.txt", "/etc/passwd", ""])
def test_no_name_leads_out_of_the_bundle(bundle: Path, name: str) -> None:
    assert console_files.find_file(name, "") is None


async def test_every_page_is_the_same_document_under_a_strict_policy(bundle: Path) -> None:
    async with open_client(make_guarded_app(ApiWorld())) as client:
        for page in ("/console", "/console/", "/console/runs/7/logs", "/console/playbooks/a/b"):
            answer = await client.get(page, headers={"Accept": "text/html"})
            assert answer.status_code == HTTPStatus.OK
            assert answer.text == "<title>NoETL</title>"
            policy = answer.headers["content-security-policy"]
            assert policy.startswith("default-src 'self';")
            assert "unsafe" not in policy
            assert answer.headers["cache-control"] == "no-cache"
            assert answer.headers["x-content-type-options"] == "nosniff"
            again = await client.get(page, headers={"If-None-Match": answer.headers["etag"]})
            assert again.status_code == HTTPStatus.NOT_MODIFIED


async def test_what_has_a_digest_in_its_name_is_kept_for_good(bundle: Path) -> None:
    async with open_client(make_guarded_app(ApiWorld())) as client:
        answer = await client.get(f"/console/{SCRIPT}", headers={"Accept-Encoding": "identity"})
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert answer.headers["content-type"].startswith("text/javascript")
        missing = await client.get("/console/assets/index-older.js")
        assert missing.status_code == HTTPStatus.NOT_FOUND


async def test_without_a_bundle_the_answer_says_how_to_build_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(console_files, "has_bundle", lambda: False)
    async with open_client(make_guarded_app(ApiWorld())) as client:
        answer = await client.get("/console/")
    assert answer.status_code == HTTPStatus.NOT_FOUND
    assert "make console" in answer.json()["hint"]


async def test_a_page_asked_for_as_json_leads_to_the_api() -> None:
    async with open_client(make_guarded_app(ApiWorld())) as client:
        answer = await client.get(
            "/console/runs?status=FAILED", headers={"Accept": "application/json"}
        )
    assert answer.status_code == HTTPStatus.TEMPORARY_REDIRECT
    assert answer.headers["location"] == "/api/executions?status=FAILED"


@pytest.mark.parametrize(
    ("page", "address"),
    [
        ("runs/72/events", "/api/executions/72/events"),
        ("runs/72", "/api/executions/72/moment"),
        ("runs/72/items", "/api/executions/72/items"),
        ("runs/72/compare", "/api/executions/72/moments/difference"),
        ("runs/72/counterfactual", "/api/executions/72/counterfactual"),
        ("playbooks/demo/hello", "/api/catalog/demo/hello"),
        (
            "playbooks/demo/a b€?version=1\r#",
            "/api/catalog/demo/a%20b%E2%82%AC%3Fversion%3D1%0D%23",
        ),
        ("runs/no-number", None),
        ("open", None),
    ],
)
def test_pages_have_an_address_in_the_api(page: str, address: str | None) -> None:
    assert find_json_address(page, "") == address


@pytest.mark.parametrize(
    ("page", "query", "address"),
    [
        # The panel of a step is the page's own; the answer has every step.
        ("runs/72", "as_of=30&step=a%26b", "/api/executions/72/moment?version=30"),
        ("runs/72/payloads", "step=a", "/api/result/72/list"),
        ("runs/72/logs", "step=a%26b", "/api/executions/72/logs?step=a%26b"),
        ("runs/72/context", "as_of=30", "/api/executions/72/moment?version=30"),
        ("runs/72/events", "find=step+a", "/api/executions/72/events?text=step+a"),
        ("runs/72/logs", "as_of=30", "/api/executions/72/logs?version=30"),
        ("runs/72/payloads", "as_of=30", "/api/result/72/list?version=30"),
        ("runs/72/logs", "find=", "/api/executions/72/logs?text="),
        (
            "runs/72/items",
            "step=a%2Fb&state=failed&as_of=30",
            "/api/executions/72/items/a%2Fb?state=failed&version=30",
        ),
        ("runs/72/items", "step=&state=failed", "/api/executions/72/items?step=&state=failed"),
        ("runs/72/items", "state=failed", "/api/executions/72/items?state=failed"),
        (
            "runs/72/compare",
            "before=3&after=9",
            "/api/executions/72/moments/difference?before=3&after=9",
        ),
        (
            "runs/72/compare",
            "run=73&as_of=9",
            "/api/executions/72/difference?with=73&version=9",
        ),
        ("runs/72/counterfactual", "other=2", "/api/executions/72/counterfactual?other=2"),
        ("playbooks/demo/a", "version=-3", "/api/catalog/demo/a?version=-3"),
        ("notifications", "", "/api/notifications"),
    ],
)
def test_an_address_in_the_api_shows_the_moment_and_the_search_of_its_page(
    page: str, query: str, address: str
) -> None:
    assert find_json_address(page, query) == address


def test_a_browser_gets_a_page_and_a_program_gets_json() -> None:
    assert prefers_json("application/json")
    assert not prefers_json("text/html,application/xhtml+xml,application/json;q=0.9")
    assert not prefers_json("*/*")


def test_every_json_address_is_a_route_of_the_api() -> None:
    paths = {path for method, path in RULES if method == "GET"}
    for _, address in routes._PAGES:
        path = address.replace("{id}", "{execution_id}")
        assert path in paths, address


def test_the_console_knows_the_api_as_it_is() -> None:
    digest = console_types.digest_document(console_types.build_document())
    assert console_types.read_digest() == digest, "make console/types"


def test_the_editor_offers_the_words_of_the_language() -> None:
    kept = json.loads(console_types.VOCABULARY.read_text("utf-8"))
    assert kept == console_types.build_vocabulary(), "make console/types"
    assert {"workflow", "step", "loop", "tool"} <= set(kept["keys"])
