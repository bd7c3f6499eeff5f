"""Lineage of every example, held against the files that OpenLineage publishes."""

import copy
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support import gallery
from tests.support.gallery import Gallery
from tests.support.openlineage import FACETS
from tests.support.openlineage_published import Judgement, Published
from tests.support.servers import nats_server, postgres_server

STATES = {"START", "COMPLETE", "FAIL", "ABORT"}
EXECUTIONS_MAX = 200
# Spark starts for some of them.
PATIENCE_S = 1200.0
# What each does to an event that is right; every one of them has to be refused.
DAMAGE: dict[str, tuple[tuple[str, ...], Any]] = {
    "no run id": (("run", "runId"), None),
    "a run id that is no UUID": (("run", "runId"), "seven"),
    "a time without a zone": (("eventTime",), "2026-01-01T12:00:00"),
    "a state that there is not": (("eventType",), "BEGIN"),
    "no producer": (("producer",), None),
    "a job without a name": (("job", "name"), None),
    "inputs that are no list": (("inputs",), {}),
    "a facet without its producer": (("job", "facets", "jobType", "_producer"), None),
    "a facet that lacks what it must say": (("job", "facets", "jobType", "integration"), None),
}


def prove(folder: Path, *, spec: Path) -> dict[str, Any]:
    """Run every example, and judge every event that is told of it and of what it called."""
    published = Published(spec)
    (folder / "postgres").mkdir()
    (folder / "nats").mkdir()
    (folder / "gallery").mkdir()
    with (
        postgres_server(folder / "postgres") as postgres,
        nats_server(folder / "nats") as nats,
        gallery.open_gallery(folder / "gallery") as opened,
    ):
        opened.keep_credential("main_db", "postgres", dsn=postgres.admin_dsn())
        opened.keep_credential("bus", "nats", url=nats.url)
        opened.keep_shop_credential()
        opened.patience_s = PATIENCE_S
        for name in gallery.names():
            run(opened, name)
        executions = opened.api.get("/executions", params={"limit": EXECUTIONS_MAX}).json()
        events = [
            event
            for execution in executions["executions"]
            for event in told(opened, execution["execution_id"])
        ]
    assert len(gallery.names()) <= len(executions["executions"]) < EXECUTIONS_MAX
    judged = [item for event in events for item in published.judge(event)]
    exact = [item for item in judged if item.asked == item.by]
    refused = [item for item in exact if item.wrong]
    assert not refused, refused[:3]
    states = Counter(event["eventType"] for event in events)
    assert set(states) == STATES, states
    names = {item.what for item in judged}
    wanted = {"event", *(name for facets in FACETS.values() for name in facets)}
    assert names == wanted, names ^ wanted
    assert_bites(published, next(event for event in events if event["outputs"]))
    return {
        "examples": len(gallery.names()),
        "executions": len(executions["executions"]),
        "events": len(events),
        "states": dict(sorted(states.items())),
        "judged": counted(judged),
        "damage_refused": len(DAMAGE),
    }


def run(opened: Gallery, name: str) -> None:
    """Run an example; it does what is expected of it."""
    wanted = gallery.expected(name)
    for called in wanted.calls:
        opened.register(gallery.text_of(called))
    found = opened.differences(wanted, gallery.text_of(name))
    assert found == [], (name, found)
    print(name)  # noqa: T201 - whoever waits wants to see it go on


def told(opened: Gallery, execution_id: str) -> Iterator[dict[str, Any]]:
    """Everything that is told of an execution, page by page."""
    after = 0
    while True:
        answer = opened.api.get(f"/executions/{execution_id}/lineage", params={"after": after})
        assert answer.is_success, answer.text
        page = answer.json()
        yield from page["events"]
        after = page["next_after"]
        if not page["has_more"]:
            return


def assert_bites(published: Published, event: dict[str, Any]) -> None:
    """See that the files refuse what is wrong."""
    for name, (path, value) in DAMAGE.items():
        damaged = copy.deepcopy(event)
        place = damaged
        for step in path[:-1]:
            place = place[step]
        if value is None:
            del place[path[-1]]
        else:
            place[path[-1]] = value
        assert any(item.wrong for item in published.judge(damaged)), name


def counted(judged: list[Judgement]) -> list[dict[str, Any]]:
    """How often each file was asked, by which file it was answered, and how often that refused."""
    found: dict[tuple[str, str], list[Judgement]] = defaultdict(list)
    for item in judged:
        found[item.asked, item.by].append(item)
    return [
        {
            "asked": asked,
            "by": by,
            "judged": len(ones),
            "refused": sum(bool(item.wrong) for item in ones),
            "words": sorted({words for item in ones for words in item.wrong})[:3],
        }
        for (asked, by), ones in sorted(found.items())
    ]


def section(found: dict[str, Any]) -> str:
    """Write what was found."""
    rows = "\n".join(
        f"| {_short(item['asked'])} | {_short(item['by'])} | {item['judged']:,} | {item['refused']:,} |"
        for item in found["judged"]
    )
    states = ", ".join(f"{count:,} {state}" for state, count in found["states"].items())
    other = [item for item in found["judged"] if item["asked"] != item["by"]]
    return f"""Every one of the {found["examples"]} examples is run: {found["executions"]} executions with those that they call, failed
and cancelled ones among them. Each event that is told of them, and each of its facets by itself, is held against the file
of the standard that it names. {found["events"]:,} events: {states}. {found["damage_refused"]} kinds of damage to an event are refused.

| the file that is named | the file that judged | judged | refused |
|---|---|---:|---:|
{rows}
{_others(other) if other else ""}"""


def _others(other: list[dict[str, Any]]) -> str:
    said = sorted({f"`{words}`" for item in other for words in item["words"]})
    return f"""
Where the two differ the folder had no file of the version that is named. An older one may refuse what a newer one
allows, so that its refusals are shown and do not count. They said: {"; ".join(said) or "nothing"}.
"""


def _short(address: str) -> str:
    name = address.removeprefix("https://openlineage.io/spec/").removeprefix("facets/")
    return f"`{name}`"
