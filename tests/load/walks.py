"""How every GET of the API is walked: which requests, and how a list is followed to its end."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from msgspec import Struct, field

Params = dict[str, str | int]
PAGE_MAX = 1000
# A walk that has not come to its end after so many pages goes round in circles.
PAGES_MAX = 10_000


class Ask(Struct, frozen=True, kw_only=True):
    """One request, or the first of a list; `more` makes the next page's parameters of an answer."""

    path: str
    params: Params = {}
    more: Callable[[Any], Params | None] | None = None


class StackContents(Struct, kw_only=True):
    """What there is to ask for.

    `filled` are executions by story, `real` those that the stack ran, each with steps that have a
    result; `refs` are locators, `objects` names of business objects, `state` names the one state.
    """

    tenant: dict[str, str]
    filled: dict[str, list[str]]
    real: dict[str, list[str]]
    paths: list[str]
    names: dict[str, str]
    state: Params
    refs: list[str] = field(default_factory=list)
    objects: list[str] = field(default_factory=list)
    chance: random.Random = field(default_factory=lambda: random.Random(1))

    def some(self, count: int) -> list[str]:
        """Draw executions by lot, of every story and of those that the stack ran."""
        groups = [*self.filled.values(), *self.real.values()]
        return [self.chance.choice(self.chance.choice(groups)) for _ in range(count)]

    def ran(self, count: int) -> list[str]:
        """Draw executions that the stack ran."""
        groups = list(self.real.values())
        return [self.chance.choice(self.chance.choice(groups)) for _ in range(count)]


Walk = Callable[[StackContents, int], Iterable[Ask]]


def _after(name: str, key: str) -> Callable[[Any], Params | None]:
    """Go on behind what an answer says under `key`."""
    return lambda answer: None if answer[key] is None else {name: answer[key]}


def _has_more(answer: Any) -> Params | None:
    return {"after": answer["next_after"]} if answer["has_more"] else None


def _each(path: str, params: Params | None = None) -> Walk:
    def walk(contents: StackContents, count: int) -> Iterator[Ask]:
        for item in contents.some(count):
            yield Ask(path=path.format(execution_id=item), params=params or {})

    return walk


def _plain(path: str) -> Walk:
    return lambda _known, count: [Ask(path=path)] * count


def _named(path: str) -> Walk:
    return lambda contents, count: [Ask(path=path.format(**contents.names))] * count


def _of_place(path: str, params: Params | None = None, more: Any = None) -> Walk:
    """Ask about executions through an address that wants the tenant too."""

    def walk(contents: StackContents, count: int) -> Iterator[Ask]:
        for item in contents.some(count):
            place = {**contents.tenant, "execution_id": item, **(params or {})}
            yield Ask(path=path.format(execution_id=item), params=place, more=more)

    return walk


def _executions(contents: StackContents, count: int) -> Iterator[Ask]:
    more = _after("before", "next_before")
    yield Ask(path="/api/executions", params={"limit": PAGE_MAX}, more=more)
    statuses = ("FAILED", "CANCELLED", "RUNNING", "PAUSED")
    wanted: list[Params] = [{"status": status} for status in statuses]
    wanted += [{"path": path} for path in (*contents.paths, "load/nothing")]
    wanted.append({"status": "FAILED", "path": contents.paths[-1]})
    for params in wanted:
        yield Ask(path="/api/executions", params={"limit": PAGE_MAX, **params}, more=more)
    for turn in range(count):
        before: Params = {"before": contents.some(1)[0]} if turn % 2 else {}
        filters = contents.chance.choice([{}, *wanted])
        yield Ask(path="/api/executions", params={**before, **filters})


def _difference(contents: StackContents, count: int) -> Iterator[Ask]:
    for one, other in zip(contents.some(count), contents.some(count), strict=True):
        yield Ask(path=f"/api/executions/{one}/difference", params={"with": other})


def _show(contents: StackContents, count: int) -> Iterator[Ask]:
    def more(answer: Any) -> Params | None:
        pagination = answer["pagination"]
        return {"page": pagination["page"] + 1} if pagination["has_next"] else None

    for item in contents.some(count):
        yield Ask(path=f"/api/executions/{item}", params={"page_size": 10}, more=more)


def _events(contents: StackContents, count: int) -> Iterator[Ask]:
    for item in contents.some(count):
        yield Ask(path=f"/api/executions/{item}/events", params={"limit": 7}, more=_has_more)


def _steps(contents: StackContents, count: int) -> Iterator[Ask]:
    for item in contents.some(count):
        yield Ask(path=f"/api/executions/{item}/steps", params={"limit": 2}, more=_has_more)


def _frames(contents: StackContents, count: int) -> Iterator[Ask]:
    for item in contents.some(count):
        ways: list[Params] = [{}, {"status": "completed", "limit": 2}, {"offset": 1}]
        for params in ways:
            yield Ask(path=f"/api/executions/{item}/frames", params=params)


def _catalog(contents: StackContents, count: int) -> Iterator[Ask]:
    for turn in range(count):
        yield Ask(path="/api/catalog", params={"limit": 1 + turn % PAGE_MAX})


def _paths(address: str) -> Walk:
    def walk(contents: StackContents, count: int) -> Iterator[Ask]:
        for turn in range(count):
            yield Ask(path=address.format(path=contents.paths[turn % len(contents.paths)]))

    return walk


def _refs(contents: StackContents, count: int) -> Iterator[Ask]:
    for turn in range(count):
        params: Params = {"ref": contents.refs[turn % len(contents.refs)], "limit": 100}
        yield Ask(path="/api/result/resolve", params=params)


def _heads(contents: StackContents, count: int) -> Iterator[Ask]:
    more = _after("after", "next_after")
    yield Ask(path="/api/audit/heads", params={**contents.tenant}, more=more)
    for item in contents.some(count):
        yield Ask(path="/api/audit/heads", params={**contents.tenant, "after": item, "limit": 100})


def _state(contents: StackContents, count: int) -> Iterator[Ask]:
    for turn, item in enumerate(contents.some(count)):
        at: Params = {"as_of_position": 2} if turn % 2 else {}
        yield Ask(path="/api/replay/state", params={**contents.tenant, "execution_id": item, **at})


def _objects(contents: StackContents, count: int) -> Iterator[Ask]:
    more = _after("after", "next_after")
    yield Ask(path="/api/objects", params={"limit": PAGE_MAX}, more=more)
    yield Ask(path="/api/objects", params={"type": "order", "limit": 1}, more=more)
    yield Ask(path="/api/objects", params={"type": "nothing"})
    for item in contents.some(count):
        yield Ask(path="/api/objects", params={"execution_id": item})
        yield Ask(path="/api/objects", params={"limit": 10, "deleted": "false"})


def _object(contents: StackContents, count: int) -> Iterator[Ask]:
    for turn in range(count):
        name = contents.objects[turn % len(contents.objects)]
        yield Ask(path=f"/api/objects/{name}")


def _result(address: str) -> Walk:
    def walk(contents: StackContents, count: int) -> Iterator[Ask]:
        for turn in range(count):
            _, _, _, execution, _, step, *_ = contents.refs[turn % len(contents.refs)].split("/")
            path = address.format(execution_id=execution, step=step)
            yield Ask(path=path, params={"limit": 100})

    return walk


def _trace(contents: StackContents, count: int) -> Iterator[Ask]:
    for turn in range(count):
        _, _, _, execution, _, step, *_ = contents.refs[turn % len(contents.refs)].split("/")
        yield Ask(path=f"/api/executions/{execution}/trace/{step}")


def _items(contents: StackContents, count: int) -> Iterator[Ask]:
    for turn in range(count):
        loop = contents.real["loop"][turn % len(contents.real["loop"])]
        params: Params = {"limit": 5} if turn % 2 else {"state": "failed"}
        yield Ask(path=f"/api/executions/{loop}/items/each", params=params, more=_has_more)


def _checks(contents: StackContents, count: int) -> Iterator[Ask]:
    for turn in range(count):
        path = contents.paths[turn % len(contents.paths)]
        yield Ask(path="/api/checks", params={"path": path, "limit": 1 + turn % 100})


def _states(_: StackContents, count: int) -> Iterator[Ask]:
    for turn in range(count):
        yield Ask(path="/api/state", params={"limit": 1 + turn % 100})


def _state_of(path: str) -> Walk:
    """Ask about the one state that the load has set."""

    def walk(contents: StackContents, count: int) -> Iterator[Ask]:
        for _ in range(count):
            yield Ask(path=path, params=dict(contents.state))

    return walk


def _variable(contents: StackContents, count: int) -> Iterator[Ask]:
    for item in contents.real["steps"] * count:
        yield Ask(path=f"/api/vars/{item}/third")
        count -= 1
        if count <= 0:
            return


WALKS: dict[str, Walk] = {
    "/": _plain("/"),
    "/api/health": _plain("/api/health"),
    "/api/health/services": _plain("/api/health/services"),
    "/api/auth/config": _plain("/api/auth/config"),
    "/api/auth/whoami": _plain("/api/auth/whoami"),
    "/api/keys": _plain("/api/keys"),
    "/api/roles": _plain("/api/roles"),
    "/api/quotas": _plain("/api/quotas"),
    "/api/audit": _plain("/api/audit"),
    "/api/audit/check": _plain("/api/audit/check"),
    "/auth/login": _plain("/auth/login"),
    "/auth/callback": _plain("/auth/callback"),
    "/auth/session": _plain("/auth/session"),
    "/api/executions": _executions,
    "/api/executions/{execution_id}": _show,
    "/api/executions/{execution_id}/status": _each("/api/executions/{execution_id}/status"),
    "/api/executions/{execution_id}/events": _events,
    "/api/executions/{execution_id}/steps": _steps,
    "/api/executions/{execution_id}/items/{step}": _items,
    "/api/executions/{execution_id}/stages": _each("/api/executions/{execution_id}/stages"),
    "/api/executions/{execution_id}/frames": _frames,
    "/api/executions/{execution_id}/stream": _each("/api/executions/{execution_id}/stream"),
    "/api/executions/{execution_id}/logs": _each("/api/executions/{execution_id}/logs"),
    "/api/executions/{execution_id}/logs/stream": _each(
        "/api/executions/{execution_id}/logs/stream"
    ),
    "/api/executions/{execution_id}/moment": _each("/api/executions/{execution_id}/moment"),
    "/api/executions/{execution_id}/moment/stream": _each(
        "/api/executions/{execution_id}/moment/stream"
    ),
    "/api/executions/{execution_id}/difference": _difference,
    "/api/executions/{execution_id}/checks": _each("/api/executions/{execution_id}/checks"),
    "/api/executions/{execution_id}/lineage": _each("/api/executions/{execution_id}/lineage"),
    "/api/executions/{execution_id}/trace/{step}": _trace,
    "/api/dead-letters": _plain("/api/dead-letters"),
    "/api/dead-letters/log": _plain("/api/dead-letters/log"),
    # A load gives up no message: there is none to show.
    "/api/dead-letters/{sequence}": lambda _known, _count: [],
    "/api/catalog": _catalog,
    "/api/catalog/{path}": _paths("/api/catalog/{path}"),
    "/api/playbooks/{path}": _paths("/api/playbooks/{path}/plan"),
    "/api/pools": _plain("/api/pools"),
    "/api/state": _states,
    "/api/checks": _checks,
    "/api/state/value": _state_of("/api/state/value"),
    "/api/state/history": _state_of("/api/state/history"),
    "/api/workers": _plain("/api/workers"),
    "/api/credentials": _plain("/api/credentials"),
    "/api/credentials/{name}": _named("/api/credentials/{credential}"),
    "/api/approvals": _plain("/api/approvals"),
    "/api/result/resolve": _refs,
    "/api/replay/state": _state,
    "/api/replay/diff": _of_place("/api/replay/diff", {"before": 2}),
    "/api/replay/events": _of_place("/api/replay/events", {"limit": 7}, _has_more),
    "/api/replay/payloads": _of_place("/api/replay/payloads"),
    "/api/replay/contents": _of_place("/api/replay/contents"),
    "/api/replay/log-chunks": _of_place("/api/replay/log-chunks"),
    "/api/replay/live": _of_place("/api/replay/live"),
    "/api/replay/density": _of_place("/api/replay/density"),
    "/api/audit/heads": _heads,
    "/api/audit/executions/{execution_id}": _of_place("/api/audit/executions/{execution_id}"),
    "/api/objects": _objects,
    "/api/objects/{object_type}/{key}": _object,
    "/api/result/{execution_id}/list": _each("/api/result/{execution_id}/list"),
    "/api/result/{execution_id}/stats": _each("/api/result/{execution_id}/stats"),
    "/api/result/{execution_id}/{step}": _result("/api/result/{execution_id}/{step}"),
    "/api/executions/{execution_id}/result/{step}": _result(
        "/api/executions/{execution_id}/result/{step}"
    ),
    "/api/retention/holds": _of_place("/api/retention/holds"),
    "/api/retention/policy": _of_place("/api/retention/policy"),
    "/api/retention/units": _of_place("/api/retention/units"),
    "/api/schedules": _plain("/api/schedules"),
    "/api/schedules/{name}": _named("/api/schedules/{schedule}"),
    "/api/triggers": _plain("/api/triggers"),
    "/api/triggers/{name}": _named("/api/triggers/{trigger}"),
    "/api/vars/{execution_id}": _each("/api/vars/{execution_id}"),
    "/api/vars/{execution_id}/{name}": _variable,
    "/api/notifications": _plain("/api/notifications"),
    "/api/notifications/log": _plain("/api/notifications/log"),
    "/api/webhooks": _plain("/api/webhooks"),
    "/api/webhooks/{name}": _named("/api/webhooks/{webhook}"),
}


def uncovered(addresses: Sequence[str]) -> list[str]:
    """Name the addresses of the OpenAPI document that no walk is for, and walks without address."""
    return sorted(set(addresses) ^ set(WALKS))
