"""Looks at a server over its API, and says what to do: `noetl doctor --server`."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from noetl_cli.planner.client import WHOAMI_PATH, PlannerClient, PlannerRefusal
from noetl_cli.stack.processes.health_check import HealthCheck, Verdict

HEALTH_PATH = "/api/health"
SERVICES_PATH = "/api/health/services"
POOLS_PATH = "/api/pools"
WORKERS_PATH = "/api/workers"
_OK = "ok"
_PLANNER_ADVICE = "See the planner's log and docs/operations; its other routes answer meanwhile."
_OUTBOX_ADVICE = "See docs/operations/outbox-stalled.md"
_PROJECTOR_ADVICE = "Start it, and see docs/operations/projection-late.md"
_POOL_ADVICE = "Start a worker with NOETL_WORKER_POOL={name}"
_STORE_ADVICE = "See docs/operations/store-away.md"
_WALL_ADVICE = (
    "Its tasks may do what these walls forbid elsewhere: run it under deploy/compose/seccomp.json, "
    "or give each author workers of their own."
)
_ASK_ADVICE = "See the log of that service; ask again once it runs."
_SIGN_IN_ADVICE = (
    "Outbox, projectors and settings of servers are for administrators of the installation's own "
    "organization: noetl whoami"
)
_REFUSED = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})


def check_server(planner: PlannerClient) -> list[HealthCheck]:
    """Ask a planner for everything that it knows of itself and of the services behind it.

    Raises `CliError` where nobody answers.
    """
    checks = _check_planner(planner.url, planner.get(HEALTH_PATH))
    try:
        who = planner.get(WHOAMI_PATH)
    except PlannerRefusal as refusal:
        return [*checks, _build_refused_check("sign-in", refusal)]
    name = f"{who['tenant']}/{who['organization']}"
    checks.append(_build_check("sign-in", is_well=True, found=f"acts for {name}"))
    try:
        checks += _check_services(planner.get(SERVICES_PATH))
    except PlannerRefusal as refusal:
        checks.append(_build_refused_check("services", refusal))
    try:
        checks += _check_pools(planner.get(POOLS_PATH)["pools"])
        checks += _check_workers(planner.get(WORKERS_PATH)["workers"])
    except PlannerRefusal as refusal:
        checks.append(_build_refused_check("pools", refusal))
    return checks


def _build_check(name: str, *, is_well: bool, found: str, way_out: str = "") -> HealthCheck:
    return HealthCheck(
        name=name,
        verdict=Verdict.OK if is_well else Verdict.FAIL,
        found=found,
        way_out="" if is_well else way_out,
    )


def _build_refused_check(name: str, refusal: PlannerRefusal) -> HealthCheck:
    """Say that the caller may not see a part; a failure of the server is one of the server."""
    is_refused = refusal.status in _REFUSED
    return HealthCheck(
        name=name,
        verdict=Verdict.WARN if is_refused else Verdict.FAIL,
        found=refusal.message,
        way_out=_SIGN_IN_ADVICE if is_refused else refusal.way_out or _PLANNER_ADVICE,
    )


def _check_planner(url: str, told: Mapping[str, Any]) -> list[HealthCheck]:
    """Show each store and loop of the planner with which something is wrong."""
    server = _build_check(
        "planner",
        is_well=told["status"] == _OK,
        found=f"{told['status']} at {url}",
        way_out=_PLANNER_ADVICE,
    )
    return [
        server,
        *(
            _build_check(f"planner {name}", is_well=False, found=text, way_out=_PLANNER_ADVICE)
            for name, text in sorted(told["problems"].items())
        ),
    ]


def _check_services(told: Mapping[str, Any]) -> list[HealthCheck]:
    """Show outbox, projectors and settings of servers, and which of them could not be asked."""
    checks = [
        _build_check(name, is_well=False, found=f"could not be asked: {text}", way_out=_ASK_ADVICE)
        for name, text in sorted(told["problems"].items())
    ]
    if (outbox := told["outbox"]) is not None:
        checks.append(
            _build_check(
                "outbox",
                is_well=outbox["is_well"],
                found=f"{outbox['rows']} messages wait, the oldest for {outbox['oldest_s']:g} s",
                way_out=_OUTBOX_ADVICE,
            )
        )
    checks += [
        _build_check(
            projector["consumer"],
            is_well=projector["is_served"],
            found=f"{projector['lag']} messages behind"
            + ("" if projector["is_served"] else ", and no projector asks for them"),
            way_out=_PROJECTOR_ADVICE,
        )
        for projector in told["projectors"] or []
    ]
    checks += [
        _build_check(
            setting["name"],
            is_well=setting["is_well"],
            found=setting["found"],
            way_out=setting["way_out"],
        )
        for setting in told["settings"] or []
    ]
    return checks


def _check_pools(pools: list[dict[str, Any]]) -> list[HealthCheck]:
    """Show each pool; one without a worker is a fault where commands wait in it.

    A pool of which NATS tells nothing is no finding of its own: the server's health names NATS.
    """
    checks = []
    for pool in pools:
        if pool["served"] is None:
            continue
        waiting = sum(lane["pending"] for lane in pool["lanes"])
        running = sum(lane["unsettled"] for lane in pool["lanes"])
        verdict = Verdict.OK
        if not pool["served"]:
            verdict = Verdict.FAIL if waiting else Verdict.WARN
        served = "" if pool["served"] else ", and no worker serves it"
        checks.append(
            HealthCheck(
                name=f"pool {pool['name']}",
                verdict=verdict,
                found=f"{waiting} commands wait, {running} run{served}",
                way_out="" if pool["served"] else _POOL_ADVICE.format(name=pool["name"]),
            )
        )
    return checks


def _check_workers(workers: list[dict[str, Any]]) -> list[HealthCheck]:
    """Show each worker as it last described itself: its store, and the walls around its tasks."""
    checks = []
    for worker in workers:
        found = f"{worker['running']} of {worker['capacity']} commands run"
        verdict, way_out = Verdict.OK, ""
        # A server of an earlier release does not say it.
        if missing := worker.get("missing_walls"):
            found += f", tasks lack the walls: {', '.join(missing)}"
            verdict, way_out = Verdict.WARN, _WALL_ADVICE
        if waits := worker["store_waits"]:
            found += f", {waits} calls wait for its payload store"
            verdict, way_out = Verdict.FAIL, _STORE_ADVICE
        name = f"worker {worker['worker_id']} {'+'.join(worker['lanes'])}"
        checks.append(HealthCheck(name=name, verdict=verdict, found=found, way_out=way_out))
    return checks
