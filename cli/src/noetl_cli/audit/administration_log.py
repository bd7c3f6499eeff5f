"""The administration log as the command line shows it, follows it and exports it."""

import time
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from noetl_cli.audit import ocsf
from noetl_cli.planner.client import PlannerClient
from noetl_contracts import spelling

FOLLOW_S = 1.0
PAGE_RECORDS = 500
RECORDS_MAX = 1000


class RecordQuery(Struct, frozen=True, kw_only=True):
    """Which records are wanted, and how many of the latest of them."""

    who: str | None
    what: str | None
    outcome: str | None
    since: str | None
    until: str | None
    limit: int


def list_records(planner: PlannerClient, record_query: RecordQuery) -> list[dict[str, Any]]:
    """Return the latest records that are wanted, in order, each with its place."""
    page = planner.get("/api/audit", **_build_query(record_query), limit=record_query.limit)
    return _place_records(page)


def follow_records(
    planner: PlannerClient, record_query: RecordQuery, after: int
) -> Iterator[dict[str, Any]]:
    """Yield records that come after a version, for as long as the caller asks."""
    while True:
        page = planner.get(
            "/api/audit", **_build_query(record_query), after=after, limit=PAGE_RECORDS
        )
        records = _place_records(page)
        yield from records
        after = max(after, page["next_after"])
        if len(records) < PAGE_RECORDS:
            time.sleep(FOLLOW_S)


def list_whole_log(planner: PlannerClient, record_query: RecordQuery) -> Iterator[dict[str, Any]]:
    """Yield every record that is wanted, the first one first."""
    after = 0
    while True:
        page = planner.get(
            "/api/audit", **_build_query(record_query), after=after, limit=PAGE_RECORDS
        )
        records = _place_records(page)
        yield from records
        if len(records) < PAGE_RECORDS:
            return
        after = page["next_after"]


def format_record(record: dict[str, Any]) -> tuple[str, ...]:
    """Return a record as the cells of a table: when, who, what, on what, and how it ended."""
    outcome = "" if record["outcome"] == "done" else record["outcome"]
    who = format_actor(record["actor"])
    details = record["details"]
    role, folder = details.get("role") or "", details.get("path_prefix") or ""
    return record["at"][:19], who, record["action"], record["target"], role, folder, outcome


def suggest_what(planner: PlannerClient, action_text: str) -> str:
    """Name what was done lately that is spelled nearly as what was looked for."""
    records = planner.get("/api/audit", limit=RECORDS_MAX)["records"]
    actions = {record["action"] for record in records}
    groups = {action.partition(".")[0] for action in actions}
    return spelling.suggest_or_list(
        action_text, sorted(actions | groups), label="lately there were"
    )


def format_actor(actor: dict[str, Any]) -> str:
    """Name an actor, and who caused first what it asked for."""
    who: str = actor.get("name") or actor.get("id") or actor["kind"]
    cause = actor.get("on_behalf_of")
    if cause is not None:
        who += f" (for {cause.get('name') or cause.get('id') or cause['kind']})"
    return who


def build_export(record: dict[str, Any], form: str) -> dict[str, Any]:
    """Return a record in a form for other programs."""
    if form == "ocsf":
        return ocsf.build_ocsf_event(
            record, tenant=record["tenant"], organization=record["organization"]
        )
    return record


def _build_query(record_query: RecordQuery) -> dict[str, Any]:
    return {
        "who": record_query.who,
        "what": record_query.what,
        "outcome": record_query.outcome,
        "since": record_query.since,
        "until": record_query.until,
    }


def _place_records(page: Any) -> list[dict[str, Any]]:
    place = {"tenant": page["tenant"], "organization": page["organization"]}
    return [{**record, **place} for record in page["records"]]
