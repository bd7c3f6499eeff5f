"""Playbooks judged through the front door, by what a sidecar says of each.

Beside `<name>.yaml` stands `<name>.expect.yaml`: one expectation, or `cases`, several by name that
run the same playbook. What it may say is in `Expectation`. A value is compared with its type
(`true` is not 1, and 1 is not 1.0); a mapping with a single key that begins with `$` asks for less
than equality: `$has` a fragment (or several), `$match` a pattern, `$type` a JSON type, `$length`,
`$keys` the keys, `$some` some of a mapping's entries, `$absent` nothing there.
"""

import re
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest
from tests.support.servers import wait_until
from tests.support.stack import Stack

LANGUAGE = Path(__file__).parents[1] / "acceptance" / "language"
SIDECAR = ".expect.yaml"
PATIENCE_S = 90.0
PAGE_EVENTS = 1000
PAGES_MAX = 100
TERMINAL = {"COMPLETED", "FAILED", "CANCELLED"}
# A key of a path: a bare name, or anything in brackets.
SEGMENT = re.compile(r"\[\"(?P<quoted>[^\"]*)\"\]|\[(?P<index>-?\d+)\]|(?P<bare>[^.\[\]]+)")
MISSING = object()
Types = {"string": str, "boolean": bool, "list": list, "mapping": dict, "null": type(None)}


class ErrorSays(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an error object must say: fields by path, and fragments of its message."""

    kind: str
    message: str | list[str] = []
    fields: dict[str, Any] = {}


class Refusal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How registration must refuse: a diagnostic with this code, place and words."""

    code: str
    path: str | None = None
    line: int | None = None
    message: str | list[str] = []


class Unaccepted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the wish to execute must be turned down."""

    status: int
    code: str
    message: str | list[str] = []


class Expectation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What must be seen of one run.

    `level` is that of the registration, `diagnostics` the codes of all its warnings; `unaccepted`
    says that it may be registered but not run; `sent_as` is the request's name for `workload`;
    `catalog` holds values of the playbook's entry by path, `result` values by `<step>.<path>` from
    the results' API, `ctx` values by path from the variables' API; `events` how often each type
    occurs (with `@<step>`: of one step); `errors` the error of the last failed run of a step;
    `entered` the steps in the order in which they began; `warnings` how many the run counts.
    """

    about: str = ""
    workload: dict[str, Any] = {}
    sent_as: str = "workload"
    level: str = "tolerant"
    refused: Refusal | None = None
    unaccepted: Unaccepted | None = None
    catalog: dict[str, Any] = {}
    diagnostics: list[str] = []
    status: str = "COMPLETED"
    error: ErrorSays | None = None
    errors: dict[str, ErrorSays] = {}
    result: dict[str, Any] = {}
    ctx: dict[str, Any] = {}
    events: dict[str, int] = {}
    entered: list[str] | None = None
    completed_steps: list[str] | None = None
    warnings: int | None = None


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One playbook and one expectation of it."""

    name: str
    playbook: Path
    expectation: Expectation


def cases(*sections: str) -> list[Any]:
    """Collect the cases of some folders as parameters of a test, each under its own name."""
    found = []
    for section in sections:
        for playbook in sorted((LANGUAGE / section).glob("*.yaml")):
            if not playbook.name.endswith(SIDECAR):
                found += [pytest.param(case, id=case.name) for case in _cases(section, playbook)]
    assert found, sections
    return found


def _cases(section: str, playbook: Path) -> list[Case]:
    answer = msgspec.yaml.decode(playbook.with_name(playbook.stem + SIDECAR).read_bytes())
    many = answer.get("cases")
    named = {f"-{name}": item for name, item in many.items()} if many else {"": answer}
    return [
        Case(
            name=f"{section}/{playbook.stem}{suffix}",
            playbook=playbook,
            expectation=msgspec.convert(item or {}, Expectation),
        )
        for suffix, item in named.items()
    ]


class Examiner:
    """A stranger at the API of one stack; `places` are values for `$NAME` in requests."""

    def __init__(self, stack: Stack, **places: str) -> None:
        self.client = httpx.Client(
            base_url=stack.url("api"), headers=stack.owner_headers, timeout=30
        )
        self.places = places

    def examine(self, case: Case) -> None:
        """Register, run and judge one case; raises `AssertionError` with all that differs."""
        expectation = case.expectation
        registered = self.client.post(
            "/api/catalog/register",
            params={"level": expectation.level},
            content=case.playbook.read_bytes(),
        )
        if expectation.refused is not None:
            found = _refusal_differs(registered, expectation.refused)
        else:
            assert registered.status_code == 200, registered.text
            codes = [diagnostic["code"] for diagnostic in registered.json()["diagnostics"]]
            found = _differs("diagnostics", codes, expectation.diagnostics)
            found += self._catalog_differs(registered.json()["path"], expectation)
            found += self._executed_differs(registered.json(), expectation)
        assert not found, "\n".join([f"{case.name}: {expectation.about}", *found])

    def _catalog_differs(self, path: str, expectation: Expectation) -> list[str]:
        if not expectation.catalog:
            return []
        entry = self._get(f"/api/catalog/{path}")
        seen = [(name, at(entry, name), value) for name, value in expectation.catalog.items()]
        return [
            line for name, item, value in seen for line in _differs(f"catalog {name}", item, value)
        ]

    def _executed_differs(self, registered: Any, expectation: Expectation) -> list[str]:
        answer = self.execute(registered, expectation)
        if expectation.unaccepted is not None:
            said = answer.json()
            found = _differs("accepted", answer.status_code, expectation.unaccepted.status)
            found += _differs("code", said.get("code"), expectation.unaccepted.code)
            lacking = _lacking(said.get("detail"), expectation.unaccepted.message)
            return found + [f"{item!r} is not in {said}" for item in lacking]
        assert answer.status_code == 202, answer.text
        return self._run_differs(str(answer.json()["execution_id"]), expectation)

    def _run_differs(self, execution_id: str, expectation: Expectation) -> list[str]:
        shown = self.wait(execution_id)
        events = self.events(execution_id)
        found = _differs("status", shown["status"], expectation.status)
        if expectation.error is not None:
            found += _error_differs("error", shown["error"], expectation.error)
        elif shown["error"] is not None and expectation.status != "FAILED":
            found.append(f"error: unexpected {shown['error']}")
        found += self._values_differ(execution_id, expectation)
        for step, error in expectation.errors.items():
            answer = self._result(execution_id, step)
            found += _error_differs(f"error of {step}", answer.get("error"), error)
        found += _events_differ(events, expectation)
        if expectation.warnings is not None:
            found += _differs("warnings", shown.get("warnings"), expectation.warnings)
        if expectation.completed_steps is not None:
            completed = sorted(shown["completed_steps"])
            found += _differs("completed_steps", completed, sorted(expectation.completed_steps))
        if found:
            found.append(f"execution {execution_id}: {shown['status']} {shown['error']}")
        return found

    def close(self) -> None:
        """Let go of the API."""
        self.client.close()

    def keep(self, name: str, kind: str, **data: str) -> None:
        """Keep a credential that playbooks may name."""
        body = {"name": name, "type": kind, "data": data}
        answer = self.client.post("/api/credentials", json=body)
        assert answer.is_success, answer.text

    def execute(self, registered: Any, expectation: Expectation) -> httpx.Response:
        """Ask for a run of what was registered."""
        body = {
            "path": registered["path"],
            "version": registered["version"],
            expectation.sent_as: self._placed(expectation.workload),
        }
        return self.client.post("/api/execute", json=body)

    def wait(self, execution_id: str) -> Any:
        """Wait for the end; return the status."""
        wait_until(
            lambda: self._status(execution_id)["status"] in TERMINAL,
            timeout_s=PATIENCE_S,
            what=f"execution {execution_id} ends",
        )
        return self._status(execution_id)

    def events(self, execution_id: str) -> list[dict[str, Any]]:
        """The whole history, by pages."""
        found: list[dict[str, Any]] = []
        after = 0
        for _ in range(PAGES_MAX):
            page = self._get(f"/api/executions/{execution_id}/events", after=after)
            found += page["events"]
            after = page["next_after"]
            if not page["has_more"]:
                return found
        raise AssertionError(f"more than {PAGES_MAX} pages of events")

    def _status(self, execution_id: str) -> Any:
        return self._get(f"/api/executions/{execution_id}/status")

    def _values_differ(self, execution_id: str, expectation: Expectation) -> list[str]:
        found = []
        results: dict[str, Any] = {}
        for path, value in expectation.result.items():
            step, rest = _split(path)
            if step not in results:
                results[step] = self._result(execution_id, step).get("data", MISSING)
            found += _differs(f"result {path}", at(results[step], rest), value)
        if expectation.ctx:
            ctx = self._get(f"/api/vars/{execution_id}")["variables"]
            for path, value in expectation.ctx.items():
                found += _differs(f"ctx {path}", at(ctx, path), value)
        return found

    def _result(self, execution_id: str, step: str) -> Any:
        answer = self.client.get(f"/api/result/{execution_id}/{quote(step, safe='')}")
        return answer.json() if answer.is_success else {}

    def _get(self, path: str, **query: Any) -> Any:
        answer = self.client.get(path, params={"limit": PAGE_EVENTS, **query} if query else {})
        assert answer.is_success, f"{path}: {answer.status_code} {answer.text}"
        return answer.json()

    def _placed(self, value: Any) -> Any:
        match value:
            case str() if value.startswith("$") and value[1:] in self.places:
                return self.places[value[1:]]
            case dict():
                return {key: self._placed(item) for key, item in value.items()}
            case list():
                return [self._placed(item) for item in value]
            case _:
                return value


def at(value: Any, path: str) -> Any:
    """Follow a dotted path with `[i]` and `["any key"]`; `MISSING` when it leads nowhere."""
    for part in SEGMENT.finditer(path):
        index = part["index"]
        key = part["quoted"] if part["quoted"] is not None else part["bare"]
        try:
            value = value[int(index)] if index is not None else value[key]
        except (KeyError, IndexError, TypeError):
            return MISSING
    return value


def _split(path: str) -> tuple[str, str]:
    first = SEGMENT.match(path)
    assert first is not None, path
    return first["quoted"] or first["bare"], path[first.end() :]


def _differs(what: str, seen: Any, asked: Any) -> list[str]:
    if _agrees(seen, asked):
        return []
    shown = "nothing" if seen is MISSING else repr(seen)
    return [f"{what}: {shown}, not {asked!r}"]


def _agrees(seen: Any, asked: Any) -> bool:
    if isinstance(asked, dict) and len(asked) == 1:
        (key,) = asked
        if key.startswith("$"):
            return _satisfies(seen, key, asked[key])
    if type(seen) is not type(asked):
        return False
    match asked:
        case dict():
            same = seen.keys() == asked.keys()
            return same and all(_agrees(seen[key], item) for key, item in asked.items())
        case list():
            same = len(seen) == len(asked)
            return same and all(map(_agrees, seen, asked))
        case _:
            return bool(seen == asked)


def _satisfies(seen: Any, key: str, asked: Any) -> bool:
    if key == "$absent":
        return (seen is MISSING) is asked
    if seen is MISSING:
        return False
    match key:
        case "$has":
            return not _lacking(seen, asked)
        case "$match":
            return isinstance(seen, str) and re.fullmatch(asked, seen) is not None
        case "$type":
            return _is_type(seen, asked)
        case "$length":
            return len(seen) == asked
        case "$keys":
            return isinstance(seen, dict) and sorted(seen) == sorted(asked)
        case "$some":
            given = isinstance(seen, dict)
            return given and all(_agrees(at(seen, path), item) for path, item in asked.items())
        case _:
            raise AssertionError(f"unknown matcher {key}")


def _is_type(seen: Any, name: str) -> bool:
    match name:
        case "integer":
            return type(seen) is int
        case "number":
            return type(seen) in {int, float}
        case _:
            return type(seen) is Types[name]


def _lacking(seen: Any, fragments: str | list[str]) -> list[str]:
    wanted = [fragments] if isinstance(fragments, str) else fragments
    return [item for item in wanted if item not in str(seen)]


def _error_differs(what: str, seen: Any, asked: ErrorSays) -> list[str]:
    if seen is None:
        return [f"{what}: none, not {asked.kind}"]
    found = _differs(f"{what} kind", at(seen, "kind"), asked.kind)
    lacking = _lacking(at(seen, "message"), asked.message)
    found += [f"{what} message: {item!r} is not in {at(seen, 'message')!r}" for item in lacking]
    for path, value in asked.fields.items():
        found += _differs(f"{what} {path}", at(seen, path), value)
    return found


def _events_differ(events: list[dict[str, Any]], expectation: Expectation) -> list[str]:
    seen: Counter[str] = Counter()
    for event in events:
        seen[event["event_type"]] += 1
        seen[f"{event['event_type']}@{event['node_name']}"] += 1
    found = []
    for kind, count in expectation.events.items():
        found += _differs(f"events {kind}", seen[kind], count)
    if expectation.entered is not None:
        entered = [item["node_name"] for item in events if item["event_type"] == "step.enter"]
        found += _differs("entered", entered, expectation.entered)
    return found


def _refusal_differs(answer: httpx.Response, refusal: Refusal) -> list[str]:
    found = _differs("registration", answer.status_code, 422)
    problems = answer.json().get("diagnostics", [])
    fitting = [
        problem
        for problem in problems
        if problem["code"] == refusal.code
        and refusal.path in {None, problem["path"]}
        and refusal.line in {None, problem["line"]}
        and not _lacking(f"{problem['message']} ({problem['hint']})", refusal.message)
    ]
    return found if fitting else [*found, f"no {refusal} among {problems}"]
