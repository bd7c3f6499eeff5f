"""`noetl role`, `noetl key` and `noetl audit log` show who may do what, and who did."""

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.support.canned_api import serve_answers
from typer.testing import CliRunner, Result

from noetl_cli.__main__ import app
from noetl_cli.audit import administration_log
from noetl_cli.commands.executions import events
from noetl_cli.planner.client import open_client
from noetl_contracts import codec

BINDING = {
    "binding_id": "7",
    "kind": "group",
    "subject": "data-team",
    "issuer": "",
    "role": "author",
    "path_prefix": "sales",
    "organization": "default",
    "created_by": "root",
    "created_at": "2026-01-01T12:00:00Z",
}
ROLES = {"roles": [{"role": "author", "permissions": ["run playbooks"]}], "bindings": [BINDING]}
KEY = {
    "key_prefix": "noetl_0123456789ab",
    "account": "ci",
    "kind": "service_account",
    "created_by": "root",
    "created_at": "2026-01-01T12:00:00Z",
    "expires_at": None,
    "used_at": None,
    "revoked_at": None,
}
RECORD: dict[str, Any] = {
    "version": 1,
    "at": "2026-01-01T12:00:00.5Z",
    "action": "role.granted",
    "target": "group data-team",
    "outcome": "done",
    "actor": {"kind": "person", "id": "ada", "name": "Ada\x1b[31m", "issuer": "https://id"},
    "details": {"role": "author"},
    "checksum": "c" * 64,
}
DENIED = {**RECORD, "version": 2, "action": "access.denied", "outcome": "refused"}
PAGE = {
    "tenant": "default",
    "organization": "west",
    "records": [RECORD, DENIED],
    "next_after": 2,
}


def run(answers: dict[str, tuple[int, Any]], *words: str) -> Result:
    with serve_answers(answers) as api:
        return CliRunner().invoke(app, [*words, "--server", api.url], catch_exceptions=False)


def test_roles_are_listed_with_what_they_allow() -> None:
    done = run({"GET /api/roles": (200, ROLES)}, "role", "ls")
    assert "data-team" in done.stdout
    assert "sales" in done.stdout
    assert "run playbooks" in done.stdout


def test_a_role_is_given_and_taken_away() -> None:
    given = run(
        {"POST /api/roles": (200, BINDING)},
        *("role", "grant", "author", "data-team", "--kind", "group", "--folder", "sales"),
    )
    assert given.stdout == ("group data-team is author for the playbooks of sales (binding 7)\n")
    taken = run({"DELETE /api/roles/7": (200, BINDING)}, "role", "revoke", "7")
    assert taken.stdout == "group data-team is no longer author\n"


def test_a_new_key_is_alone_on_stdout() -> None:
    made = {
        "key": "noetl_0123456789ab_secret",
        "key_prefix": "noetl_0123456789ab",
        "account": "ci",
        "expires_at": "2026-04-01T12:00:00Z",
    }
    done = run({"POST /api/keys": (200, made)}, "key", "create", "ci", "--role", "operator")
    assert done.stdout == "noetl_0123456789ab_secret\n"
    assert "valid until 2026-04-01" in done.stderr


@pytest.mark.parametrize(
    ("options", "is_told"),
    [([], True), (["--role", "operator"], False), (["--worker"], False)],
)
def test_a_key_without_a_role_says_so(options: list[str], *, is_told: bool) -> None:
    made = {"key": "noetl_0_s", "key_prefix": "noetl_0", "account": "ci", "expires_at": None}
    done = run({"POST /api/keys": (200, made)}, "key", "create", "ci", *options)
    assert done.stdout == "noetl_0_s\n"
    assert ("noetl role grant operator ci" in done.stderr) == is_told


@pytest.mark.parametrize(
    ("status", "answer"),
    [(200, {}), (200, {"name": "not a planner"}), (404, {"error": "Not Found"})],
)
def test_a_server_that_is_no_planner_takes_nobody_for_anybody(
    status: int, answer: dict[str, str]
) -> None:
    with serve_answers({"GET /api/auth/whoami": (status, answer)}) as api:
        done = CliRunner().invoke(app, ["whoami", "--server", api.url])
    assert done.exit_code != 0
    assert "not a NoETL planner" in str(done.exception)


def test_a_list_of_keys_says_how_long_they_open() -> None:
    revoked = {**KEY, "key_prefix": "noetl_ff", "revoked_at": "2026-02-01T12:00:00Z"}
    done = run({"GET /api/keys": (200, {"keys": [KEY, revoked]})}, "key", "ls")
    first, second = done.stdout.splitlines()[1:]
    assert "for good" in first
    assert "never" in first
    assert "revoked" in second


def test_the_owners_token_is_known_to_the_planner_by_its_digest() -> None:
    done = CliRunner().invoke(app, ["key", "owner", "--json"])
    made = json.loads(done.stdout)
    assert made["sha256"] == codec.digest_hex(made["token"].encode())


def test_the_log_shows_who_did_what_and_obeys_no_escape() -> None:
    done = run({"GET /api/audit": (200, PAGE)}, "audit", "log", "--what", "role")
    assert "role.granted" in done.stdout
    assert "refused" in done.stdout
    assert "\x1b" not in done.stdout


def test_the_log_is_narrowed_by_outcome_and_time() -> None:
    with serve_answers({"GET /api/audit": (200, PAGE)}) as api:
        options = ("--outcome", "refused", "--since", "2026-01-01", "--until", "2026-01-02T12:00Z")
        CliRunner().invoke(app, ["audit", "log", *options, "--server", api.url])
    query = parse_qs(urlsplit(api.asked[0]).query)
    assert query["outcome"] == ["refused"]
    assert query["since"] == ["2026-01-01T00:00:00+00:00"]
    assert query["until"] == ["2026-01-02T12:00:00+00:00"]


def test_a_time_that_is_none_is_refused_with_the_way_out() -> None:
    done = CliRunner().invoke(app, ["audit", "log", "--until", "soon"])
    assert "--until 'soon' is no length of time" in str(done.exception)


def test_the_log_is_exported_as_ocsf() -> None:
    done = run({"GET /api/audit": (200, PAGE)}, "audit", "log", "--export", "ocsf")
    granted, denied = map(json.loads, done.stdout.splitlines())
    assert (granted["class_uid"], granted["activity_id"], granted["type_uid"]) == (3005, 1, 300501)
    assert granted["time"] == 1767268800500
    assert granted["actor"]["user"]["uid"] == "ada"
    assert granted["metadata"]["uid"] == "default/west/1"
    assert (denied["class_uid"], denied["status_id"], denied["severity_id"]) == (6003, 2, 3)


def test_a_refusal_names_the_way_out() -> None:
    refused = (403, {"code": "forbidden", "detail": "eve may not administer", "hint": "ask"})
    with serve_answers({"GET /api/keys": refused}) as api:
        done = CliRunner().invoke(app, ["key", "ls", "--server", api.url])
    assert "eve may not administer" in str(done.exception)


def test_the_log_shows_which_role_and_folder_were_given() -> None:
    granted = {**RECORD, "details": {"role": "author", "path_prefix": "sales/eu"}}
    done = run({"GET /api/audit": (200, {**PAGE, "records": [granted]})}, "audit", "log")
    head, line = done.stdout.splitlines()
    assert head.split()[-2:] == ["ROLE", "FOLDER"]
    assert line.split()[-2:] == ["author", "sales/eu"]


def test_a_misspelled_action_of_the_log_is_answered_with_the_nearest() -> None:
    with serve_answers({"GET /api/audit": (200, PAGE)}) as api, open_client(api.url) as planner:
        assert "'role.granted'" in administration_log.suggest_what(planner, "role.grantd")


def test_an_event_names_who_asked_for_it() -> None:
    actor = {"kind": "execution", "name": "sales/load", "on_behalf_of": {"name": "ann"}}
    view = {"version": 1, "event_type": "playbook.initialized", "node_name": None}
    line = events.format_event({**view, "context": {}, "error": None, "actor": actor})
    assert line.endswith("by sales/load (for ann)")
