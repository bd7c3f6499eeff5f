"""Whatever changes something outside an execution is recorded with who did it, or says why not.

Every route of the API that is no question, and every verb of the command line, is either recorded
or named below with the reason. A new one without a record fails.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from litestar.routes import HTTPRoute
from tests.support.api import ApiWorld
from tests.support.reached_calls import list_reached_names

from noetl_cli.verbs import Verbs
from noetl_planner.api.app import create_app

_HISTORY = "recorded in the history of the execution, with its actor"
_BEGINS = "begins an execution, whose history names who asked"
_WORK = "a worker's report, which becomes events of its execution"
_OWN_SESSION = "opens or ends one's own session; what is refused is recorded"
_NOTHING = "changes nothing"
UNRECORDED_ROUTES = {
    ("POST", "/api/execute"): _BEGINS,
    ("POST", "/api/executions"): _BEGINS,
    ("POST", "/api/executions/{execution_id}/rerun"): _BEGINS,
    ("POST", "/api/executions/{execution_id}/fork"): _BEGINS,
    ("POST", "/api/schedules/{name}/run"): _BEGINS,
    ("POST", "/api/credentials/{name}/test"): _BEGINS,
    ("POST", "/api/webhooks/{name}"): _BEGINS,
    ("POST", "/api/executions/{execution_id}/cancel"): _HISTORY,
    ("POST", "/api/executions/{execution_id}/pause"): _HISTORY,
    ("POST", "/api/executions/{execution_id}/resume"): _HISTORY,
    ("PUT", "/api/vars/{execution_id}/{name}"): _HISTORY,
    ("DELETE", "/api/vars/{execution_id}/{name}"): _HISTORY,
    ("POST", "/api/callbacks/{token}"): _HISTORY,
    ("POST", "/api/signals/{correlation_key}"): _HISTORY,
    ("POST", "/api/approvals/{approval_id}"): _HISTORY,
    ("POST", "/api/commands/claim"): _WORK,
    ("POST", "/api/commands/{command_id}/heartbeat"): _WORK,
    ("POST", "/api/commands/{command_id}/complete"): _WORK,
    ("POST", "/api/commands/{command_id}/fail"): _WORK,
    ("POST", "/api/commands/{command_id}/release"): _WORK,
    ("POST", "/api/stages/{stage_id}/frames/claim"): _WORK,
    ("POST", "/api/frames/{frame_id}/heartbeat"): _WORK,
    ("POST", "/api/frames/{frame_id}/commit"): _WORK,
    ("POST", "/auth/logout"): _OWN_SESSION,
    ("POST", "/auth/session"): _OWN_SESSION,
    ("POST", "/auth/codes"): _OWN_SESSION,
    ("POST", "/api/executions/{execution_id}/counterfactual"): _NOTHING,
    ("POST", "/api/catalog/check"): _NOTHING,
    ("POST", "/api/files/chunks"): "inputs of an execution, which nothing mentions before it",
}
# Verbs that open the database or the payload store themselves, and change nothing there that is
# anybody's: all others either ask the API, or record what they do.
UNRECORDED_VERBS = {
    "audit run": _NOTHING,
    "doctor": _NOTHING,
}
RECORDED_VERBS = {
    *("payloads rotate", "payloads gc", "payloads erase", "retention run"),
    *("projection rebuild", "tenant create", "tenant drop", "tenant database"),
}
_RECORDS = {"record_work", "append_own_record"}
_STORES = {"open_database", "open_stores", "open_payload_store", "run_psql", "open_payloads"}


@pytest.fixture(scope="module")
def handlers() -> dict[tuple[str, str], Callable[..., Any]]:
    """Every route that is no question, with the function that answers it."""
    found: dict[tuple[str, str], Callable[..., Any]] = {}
    for route in create_app(ApiWorld().services()).routes:
        assert isinstance(route, HTTPRoute), "only HTTP is spoken here"
        for method, (handler, _) in route.route_handler_map.items():
            if method not in {"GET", "HEAD", "OPTIONS"}:
                found[method, route.path_format] = handler.fn
    return found


@pytest.fixture(scope="module")
def verbs() -> dict[str, Callable[..., Any]]:
    """Every verb of the command line, with the function that does it."""
    return {
        name: function
        for verb, command in Verbs().items()
        for name, function in list_verbs(command, verb)
    }


def list_verbs(command: Any, name: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    verbs_below = getattr(command, "commands", None)
    if verbs_below is None:
        yield name, command.callback
        return
    for word, verb_below in verbs_below.items():
        yield from list_verbs(verb_below, f"{name} {word}")


def test_a_route_that_changes_something_records_it_or_says_why_not(
    handlers: dict[tuple[str, str], Callable[..., Any]],
) -> None:
    recorded = {
        route
        for route, function in handlers.items()
        if "record_change" in list_reached_names(function)
    }
    assert len(recorded) > 20, "the reading of the code finds what is recorded"
    assert set(handlers) - recorded == set(UNRECORDED_ROUTES), (
        "a route that changes something uses services.record_change, or says above where else it "
        "is recorded"
    )


def test_a_verb_that_opens_the_stores_records_what_it_changes(
    verbs: dict[str, Callable[..., Any]],
) -> None:
    names_by_verb = {name: list_reached_names(function) for name, function in verbs.items()}
    opening = {name for name, names in names_by_verb.items() if names & _STORES}
    recorded = {name for name, names in names_by_verb.items() if names & _RECORDS}
    assert recorded == RECORDED_VERBS
    assert opening - recorded == set(UNRECORDED_VERBS), (
        "a verb that opens the database or the payloads by itself uses record_work or "
        "append_own_record, or says above why it changes nothing"
    )
