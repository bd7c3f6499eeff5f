"""`noetl tenant quota`: shows what tenants may use and use, and changes what is named alone."""

from typing import Any, Self

import pytest
from typer.testing import CliRunner

from noetl_cli.__main__ import app
from noetl_cli.planner import client

ACME = {
    "tenant": "acme",
    "running": 3,
    "running_max": 10,
    "calls_per_s": None,
    "stored_bytes_max": 5_000_000,
    "stored_bytes": 1_234_567,
    "suspended": False,
}
NEW = {**ACME, "tenant": "new", "stored_bytes": None}


class FakePlanner:
    """Answers with two quotas, a page each."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.patches: list[tuple[str, Any]] = []

    def get(self, path: str, /, **params: Any) -> dict[str, Any]:
        assert path == "/api/quotas"
        self.asked.append(params)
        quotas = {None: [ACME] if params["after"] == "" else [NEW], "acme": [ACME]}
        is_more = params["tenant"] is None and params["after"] == ""
        return {"quotas": quotas[params["tenant"]], "next_after": "acme" if is_more else None}

    def patch(self, path: str, body: Any) -> None:
        self.patches.append((path, body))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch) -> FakePlanner:
    fake = FakePlanner()
    monkeypatch.setattr(client, "open_client", lambda _: fake)
    return fake


def call(*words: str) -> str:
    result = CliRunner().invoke(app, ["tenant", "quota", *words])
    assert result.exit_code == 0, result.output
    return result.output


def test_all_pages_are_shown_with_what_is_stored(planner: FakePlanner) -> None:
    lines = call().splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["acme", "new"]
    assert "1,234,567" in lines[1]
    assert "5,000,000" in lines[1]
    assert "not counted" in lines[2]
    assert [params["after"] for params in planner.asked] == ["", "acme"]


def test_one_tenant_is_asked_for_by_name(planner: FakePlanner) -> None:
    assert "new" not in call("acme")
    assert planner.asked == [{"tenant": "acme", "after": ""}]


@pytest.mark.parametrize(
    ("words", "body"),
    [
        (["--stored", "7"], {"stored_bytes_max": 7}),
        (["--stored", "0", "--running", "2"], {"stored_bytes_max": 0, "running_max": 2}),
        (["--none"], dict.fromkeys(("running_max", "calls_per_s", "stored_bytes_max"))),
    ],
)
def test_only_what_is_named_is_changed(
    planner: FakePlanner, words: list[str], body: dict[str, Any]
) -> None:
    call("acme", *words)
    assert planner.patches == [("/api/quotas/acme", body)]


def test_no_bound_goes_with_another(planner: FakePlanner) -> None:
    result = CliRunner().invoke(app, ["tenant", "quota", "acme", "--none", "--stored", "1"])
    assert result.exit_code != 0
    assert planner.patches == []
