"""The older `case`: what it says about the next step becomes arcs, the rest becomes tasks."""

from typing import Any

from msgspec import Struct, field

from noetl_playbook.compat import retry, sink, template_renames
from noetl_playbook.compat.arcs import rename_arc_keys
from noetl_playbook.compat.placed_tasks import PlacedTask, map_response_names
from noetl_playbook.compat.retry import RetryEntry
from noetl_playbook.compat.template_renames import NotAnExpressionError
from noetl_playbook.model import language_names, tools
from noetl_playbook.sections.policies import rename_older_when
from noetl_playbook.source.document_reader import DocumentReader
from noetl_playbook.source.problems import Path

_SUCCESS = frozenset({language_names.DONE}) | language_names.ALSO_KNOWN_AS[language_names.DONE]
_FAILURE = frozenset({language_names.ERROR}) | language_names.ALSO_KNOWN_AS[language_names.ERROR]
_ACTIONS = ("collect", "retry", "set", "call", "sink", "save", "fail", "next")


class CaseBranch(Struct, frozen=True, kw_only=True):
    """One consequence of a case: its condition as written, and the actions."""

    when: str
    when_path: Path
    actions: dict[str, Any]
    path: Path


class CaseContext(Struct, frozen=True, kw_only=True):
    """The step of a case: its main task, and how `response` is written after it."""

    step: str
    main: PlacedTask
    names: dict[str, str]


class RewrittenCase(Struct, kw_only=True):
    """What a `case` becomes; `arcs` go before the step's own."""

    entries: list[RetryEntry] = field(default_factory=list)
    tasks: list[PlacedTask] = field(default_factory=list)
    arcs: list[tuple[dict[str, Any], Path, Path]] = field(default_factory=list)


def list_branches(reading: DocumentReader, value: Any, path: Path) -> list[CaseBranch]:
    """List the consequences of every entry, those of `else` under the opposite condition."""
    case_branches: list[CaseBranch] = []
    for index, item in enumerate(reading.read_list(value, path)):
        inner_path = (*path, index)
        raw = reading.read_mapping(item, inner_path)
        if raw is None:
            continue
        raw = rename_older_when(reading, raw, inner_path)
        for key in raw:
            if key not in ("when", "then", "else"):
                reading.report_unknown((*inner_path, key), ("when", "then", "else"))
        try:
            when = template_renames.extract_condition(raw.get("when"))
        except NotAnExpressionError as problem:
            reading.report_problem(
                "E104",
                (*inner_path, "when"),
                f"the condition cannot be joined with others: {problem}",
                hint="write it as one {{ … }}",
            )
            continue
        for key, condition in (("then", when), ("else", f"not ({when})")):
            case_branches += _list_consequences(
                reading, raw.get(key), (*inner_path, key), condition, (*inner_path, "when")
            )
    return case_branches


def _list_consequences(
    reading: DocumentReader, value: Any, path: Path, when: str, when_path: Path
) -> list[CaseBranch]:
    if value is None:
        return []
    is_list = isinstance(value, list)
    items = value if is_list else [value]
    case_branches: list[CaseBranch] = []
    for index, item in enumerate(items):
        inner_path = (*path, index) if is_list else path
        actions = reading.read_mapping(item, inner_path)
        for key in actions or ():
            if key not in _ACTIONS:
                reading.report_unknown((*inner_path, key), _ACTIONS)
        if actions:
            case_branches.append(
                CaseBranch(when=when, when_path=when_path, actions=actions, path=inner_path)
            )
    return case_branches


def rewrite_branches(
    reading: DocumentReader, case_branches: list[CaseBranch], *, step: str, main: PlacedTask
) -> RewrittenCase:
    """Sort the consequences into repeats, tasks and arcs."""
    cases = RewrittenCase()
    collects = any("collect" in branch.actions for branch in case_branches)
    about = CaseContext(step=step, main=main, names=map_response_names(main.raw, collects=collects))
    for branch in case_branches:
        for key, value in branch.actions.items():
            place = (*branch.path, key)
            match key:
                case "next":
                    cases.arcs += _list_next_arcs(reading, value, place, branch)
                case "retry" | "collect":
                    if key == "retry" or "retry" not in branch.actions:
                        cases.entries += _read_retries(reading, branch, about=about)
                case "set" | "fail":
                    cases.tasks.append(
                        _build_guard_task(branch, key, len(cases.tasks), about=about)
                    )
                case "call" | "sink" | "save":
                    task = _build_called_task(reading, branch, key, len(cases.tasks), about=about)
                    cases.tasks += [] if task is None else [task]
                case _:
                    pass
    return cases


def _list_next_arcs(
    reading: DocumentReader, value: Any, path: Path, branch: CaseBranch
) -> list[tuple[dict[str, Any], Path, Path]]:
    """List the arcs of `next`, each with its place and that of its condition."""
    is_list = isinstance(value, list)
    arcs = []
    for index, item in enumerate(value if is_list else [value]):
        inner_path = (*path, index) if is_list else path
        arc = {"step": item} if isinstance(item, str) else reading.read_mapping(item, inner_path)
        if arc is None:
            continue
        arc = rename_arc_keys(reading, arc, inner_path)
        when = branch.when
        if arc.get("when") is not None:
            try:
                when = f"({when}) and ({template_renames.extract_condition(arc['when'])})"
            except NotAnExpressionError as problem:
                reading.report_problem(
                    "E104", (*inner_path, "when"), f"the condition cannot be joined: {problem}"
                )
        # A condition that always holds is not written.
        guard = {} if when == "true" else {"when": "{{ " + when + " }}"}
        arcs.append(({**arc, **guard}, inner_path, branch.when_path))
    return arcs


def _write_gate(branch: CaseBranch, about: CaseContext) -> str:
    """Write a branch's condition for a task after the main one."""
    when = "{{ " + branch.when + " }}"
    when = template_renames.settle_event(
        when, name=language_names.DONE, equal=_SUCCESS, step=about.step
    )
    return template_renames.extract_expression(template_renames.rename_names(when, about.names))


def _build_guard_task(
    branch: CaseBranch, key: str, index: int, *, about: CaseContext
) -> PlacedTask:
    value = template_renames.rename_names_within(branch.actions[key], about.names)
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
    when = "{{ " + _write_gate(branch, about) + " }}"
    policy = {"rules": [{"when": when, "then": then}]}
    raw = {"name": f"{about.step}_case_{index}", "kind": "noop", "spec": {"policy": policy}}
    return PlacedTask(raw=raw, path=branch.path, moves=moves)


def _build_called_task(
    reading: DocumentReader, branch: CaseBranch, key: str, index: int, *, about: CaseContext
) -> PlacedTask | None:
    """Write the task that a branch calls, to be run when its condition holds."""
    value, place = branch.actions[key], (*branch.path, key)
    gate = _write_gate(branch, about)
    if key in sink.KEYS:
        name = sink.name_sink(about.step)
        collect = branch.actions.get("collect")
        collected_path = collect.get("path", "") if isinstance(collect, dict) else ""
        sink_task = sink.build_sink_task(
            reading,
            value,
            place,
            name=name,
            main=about.main.raw,
            collected_path=collected_path,
            names=about.names,
        )
        if sink_task is not None:
            sink_task.gate = gate
        return sink_task
    raw = reading.read_mapping(value, place)
    if raw is None:
        return None
    task = template_renames.rename_names_within(raw, about.names)
    return PlacedTask(raw={"name": f"{about.step}_call_{index}", **task}, path=place, gate=gate)


def _read_retries(
    reading: DocumentReader, branch: CaseBranch, *, about: CaseContext
) -> list[RetryEntry]:
    """Read `collect` and `retry` as a retry whose condition is the branch's."""
    place = (*branch.path, "retry")
    if "retry" in branch.actions:
        entries = retry.read_retry_entries(
            reading, _wrap_next_call(branch.actions["retry"], about.main), place
        )
    else:
        entries = [RetryEntry(raw={}, path=branch.path, then=branch.path)]
    retry_entries: list[RetryEntry] = []
    when = "{{ " + branch.when + " }}"
    fails = retry.is_about_errors(when) or any(name in branch.when for name in _FAILURE)
    for entry in entries:
        raw = dict(entry.raw)
        if "collect" in branch.actions and "collect" not in raw:
            raw["collect"] = branch.actions["collect"]
            reading.record_move((*branch.path, "collect"), entry.build_key_path("collect"))
        is_error = fails and "collect" not in raw and raw.get("next_call") is None
        name, equal = (
            (language_names.ERROR, _FAILURE) if is_error else (language_names.DONE, _SUCCESS)
        )
        settled_condition = template_renames.settle_event(
            when, name=name, equal=equal, step=about.step
        )
        try:
            raw["when"] = _join_conditions(settled_condition, raw.get("when"))
        except NotAnExpressionError as problem:
            retry.refuse_condition(reading, entry, problem)
        reading.record_move(branch.when_path, entry.build_key_path("when"))
        retry_entries.append(
            RetryEntry(raw=raw, path=entry.path, then=entry.then, is_error=is_error)
        )
    return retry_entries


def _join_conditions(when: str, condition: Any) -> str:
    if not isinstance(condition, str):
        return when
    return (
        "{{ ("
        + template_renames.extract_expression(when)
        + ") and ("
        + template_renames.extract_condition(condition)
        + ") }}"
    )


def _wrap_next_call(value: Any, main: PlacedTask) -> Any:
    """Take request fields that stand on the retry itself as its next call."""
    if not isinstance(value, dict) or "next_call" in value or "then" in value:
        return value
    table = tools.KINDS.get(str(main.raw.get("kind")))
    request = {key: item for key, item in value.items() if table and key in table.known_fields}
    if not request:
        return value
    return {
        **{key: item for key, item in value.items() if key not in request},
        "next_call": request,
    }
