"""The older `case`: what it says about the next step becomes arcs, the rest becomes tasks."""

from typing import Any

from msgspec import Struct, field

from noetl_playbook import aliases, tools
from noetl_playbook.policies import rename_older_when
from noetl_playbook.problems import Path
from noetl_playbook.reading import Reading
from noetl_playbook.rewriting import renaming, retry, sink
from noetl_playbook.rewriting.arcs import canonical_arc
from noetl_playbook.rewriting.placed import PlacedTask, response_names
from noetl_playbook.rewriting.renaming import NotAnExpressionError
from noetl_playbook.rewriting.retry import Entry

_SUCCESS = frozenset({aliases.DONE}) | aliases.ALSO_KNOWN_AS[aliases.DONE]
_FAILURE = frozenset({aliases.ERROR}) | aliases.ALSO_KNOWN_AS[aliases.ERROR]
_ACTIONS = ("collect", "retry", "set", "call", "sink", "save", "fail", "next")


class Branch(Struct, frozen=True, kw_only=True):
    """One consequence of a case: its condition as written, and the actions."""

    when: str
    when_path: Path
    actions: dict[str, Any]
    path: Path


class About(Struct, frozen=True, kw_only=True):
    """The step of a case: its main task, and how `response` is written after it."""

    step: str
    main: PlacedTask
    names: dict[str, str]


class Cases(Struct, kw_only=True):
    """What a `case` becomes; `arcs` go before the step's own."""

    entries: list[Entry] = field(default_factory=list)
    tasks: list[PlacedTask] = field(default_factory=list)
    arcs: list[tuple[dict[str, Any], Path, Path]] = field(default_factory=list)


def branches(reading: Reading, value: Any, path: Path) -> list[Branch]:
    """List the consequences of every entry, those of `else` under the opposite condition."""
    found: list[Branch] = []
    for index, item in enumerate(reading.listed(value, path)):
        here = (*path, index)
        raw = reading.mapping(item, here)
        if raw is None:
            continue
        raw = rename_older_when(reading, raw, here)
        for key in raw:
            if key not in ("when", "then", "else"):
                reading.unknown((*here, key), ("when", "then", "else"))
        try:
            when = renaming.condition(raw.get("when"))
        except NotAnExpressionError as problem:
            reading.report(
                "E104",
                (*here, "when"),
                f"the condition cannot be joined with others: {problem}",
                hint="write it as one {{ … }}",
            )
            continue
        for key, condition in (("then", when), ("else", f"not ({when})")):
            found += _of(reading, raw.get(key), (*here, key), condition, (*here, "when"))
    return found


def _of(reading: Reading, value: Any, path: Path, when: str, when_path: Path) -> list[Branch]:
    if value is None:
        return []
    listed = isinstance(value, list)
    items = value if listed else [value]
    found: list[Branch] = []
    for index, item in enumerate(items):
        here = (*path, index) if listed else path
        actions = reading.mapping(item, here)
        for key in actions or ():
            if key not in _ACTIONS:
                reading.unknown((*here, key), _ACTIONS)
        if actions:
            found.append(Branch(when=when, when_path=when_path, actions=actions, path=here))
    return found


def read(reading: Reading, found: list[Branch], *, step: str, main: PlacedTask) -> Cases:
    """Sort the consequences into repeats, tasks and arcs."""
    cases = Cases()
    collects = any("collect" in branch.actions for branch in found)
    about = About(step=step, main=main, names=response_names(main.raw, collects=collects))
    for branch in found:
        for key, value in branch.actions.items():
            place = (*branch.path, key)
            match key:
                case "next":
                    cases.arcs += _arcs(reading, value, place, branch)
                case "retry" | "collect":
                    if key == "retry" or "retry" not in branch.actions:
                        cases.entries += _entries(reading, branch, about=about)
                case "set" | "fail":
                    cases.tasks.append(_guard(branch, key, len(cases.tasks), about=about))
                case "call" | "sink" | "save":
                    task = _task(reading, branch, key, len(cases.tasks), about=about)
                    cases.tasks += [] if task is None else [task]
                case _:
                    pass
    return cases


def _arcs(
    reading: Reading, value: Any, path: Path, branch: Branch
) -> list[tuple[dict[str, Any], Path, Path]]:
    """List the arcs of `next`, each with its place and that of its condition."""
    listed = isinstance(value, list)
    found = []
    for index, item in enumerate(value if listed else [value]):
        here = (*path, index) if listed else path
        arc = {"step": item} if isinstance(item, str) else reading.mapping(item, here)
        if arc is None:
            continue
        arc = canonical_arc(reading, arc, here)
        when = branch.when
        if arc.get("when") is not None:
            try:
                when = f"({when}) and ({renaming.condition(arc['when'])})"
            except NotAnExpressionError as problem:
                reading.report(
                    "E104", (*here, "when"), f"the condition cannot be joined: {problem}"
                )
        # A condition that always holds is not written.
        guard = {} if when == "true" else {"when": "{{ " + when + " }}"}
        found.append(({**arc, **guard}, here, branch.when_path))
    return found


def _guarding(branch: Branch, about: About) -> str:
    """Write a branch's condition for a task after the main one."""
    when = "{{ " + branch.when + " }}"
    when = renaming.with_event(when, name=aliases.DONE, equal=_SUCCESS, step=about.step)
    return renaming.expression(renaming.renamed(when, about.names))


def _guard(branch: Branch, key: str, index: int, *, about: About) -> PlacedTask:
    value = renaming.renamed_within(branch.actions[key], about.names)
    place = (*branch.path, key)
    rule: Path = ("spec", "policy", "rules", 0)
    moves = {rule: branch.path, (*rule, "when"): branch.when_path}
    then: dict[str, Any]
    if key == "set":
        then = {"do": "continue", "set": value}
        moves[(*rule, "then", "set")] = place
    else:
        message = value.get("message") if isinstance(value, dict) else value
        then = {"do": "fail"}
        if isinstance(message, str):
            then["message"] = message
            moves[(*rule, "then", "message")] = place
    when = "{{ " + _guarding(branch, about) + " }}"
    policy = {"rules": [{"when": when, "then": then}]}
    raw = {"name": f"{about.step}_case_{index}", "kind": "noop", "spec": {"policy": policy}}
    return PlacedTask(raw=raw, path=branch.path, moves=moves)


def _task(
    reading: Reading, branch: Branch, key: str, index: int, *, about: About
) -> PlacedTask | None:
    """Write the task that a branch calls, to be run when its condition holds."""
    value, place = branch.actions[key], (*branch.path, key)
    gate = _guarding(branch, about)
    if key in sink.KEYS:
        name = sink.name_of(about.step)
        collect = branch.actions.get("collect")
        collected = collect.get("path", "") if isinstance(collect, dict) else ""
        found = sink.task(
            reading,
            value,
            place,
            name=name,
            main=about.main.raw,
            collected=collected,
            names=about.names,
        )
        if found is not None:
            found.gate = gate
        return found
    raw = reading.mapping(value, place)
    if raw is None:
        return None
    task = renaming.renamed_within(raw, about.names)
    return PlacedTask(raw={"name": f"{about.step}_call_{index}", **task}, path=place, gate=gate)


def _entries(reading: Reading, branch: Branch, *, about: About) -> list[Entry]:
    """Read `collect` and `retry` as a retry whose condition is the branch's."""
    place = (*branch.path, "retry")
    if "retry" in branch.actions:
        entries = retry.entries(reading, _as_entry(branch.actions["retry"], about.main), place)
    else:
        entries = [Entry(raw={}, path=branch.path, then=branch.path)]
    found: list[Entry] = []
    when = "{{ " + branch.when + " }}"
    fails = retry.concerns_errors(when) or any(name in branch.when for name in _FAILURE)
    for entry in entries:
        own = dict(entry.raw)
        if "collect" in branch.actions and "collect" not in own:
            own["collect"] = branch.actions["collect"]
            reading.move((*branch.path, "collect"), entry.place("collect"))
        is_error = fails and "collect" not in own and own.get("next_call") is None
        name, equal = (aliases.ERROR, _FAILURE) if is_error else (aliases.DONE, _SUCCESS)
        settled = renaming.with_event(when, name=name, equal=equal, step=about.step)
        try:
            own["when"] = _joined(settled, own.get("when"))
        except NotAnExpressionError as problem:
            retry.refuse_condition(reading, entry, problem)
        reading.move(branch.when_path, entry.place("when"))
        found.append(Entry(raw=own, path=entry.path, then=entry.then, is_error=is_error))
    return found


def _joined(when: str, own: Any) -> str:
    if not isinstance(own, str):
        return when
    return "{{ (" + renaming.expression(when) + ") and (" + renaming.condition(own) + ") }}"


def _as_entry(value: Any, main: PlacedTask) -> Any:
    """Take request fields that stand on the retry itself as its next call."""
    if not isinstance(value, dict) or "next_call" in value or "then" in value:
        return value
    table = tools.KINDS.get(str(main.raw.get("kind")))
    request = {key: item for key, item in value.items() if table and key in table.known}
    if not request:
        return value
    return {
        **{key: item for key, item in value.items() if key not in request},
        "next_call": request,
    }
