"""Every older form loads as its canonical one, and strict says what to write instead."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.canonical_document import build_document

from noetl_playbook.compat import dialect
from noetl_playbook.compat.placed_tasks import BESIDE
from noetl_playbook.model.playbook import Playbook
from noetl_playbook.parse.playbook import ParsedPlaybook, parse_playbook
from noetl_playbook.source import yaml_document
from noetl_playbook.source.problems import Level, Problem

HEAD = {"apiVersion": "noetl.io/v2", "kind": "Playbook", "metadata": {"name": "test"}}
CORPUS = Path(__file__).parent / "older"
ROUNDS_MAX = 60
# Keys that strict refuses wherever they stand, but for what authors name themselves.
OLDER_KEYS = {
    *("args", "with", "vars", "eval", "credential", "timeout_seconds", "set_ctx", "set_iter"),
    *("set_vars", "expr", "cond", "condition"),
}
NAMED_BY_AUTHORS = {"input", "set", "params", "workload"}
STRUCTURAL = {"case", "retry", "pagination", "sink", "save", "iterator"}


def cases() -> list[Any]:
    return [
        pytest.param(case, id=f"{file.stem}: {case['about']}")
        for file in sorted(CORPUS.glob("*.yaml"))
        for case in yaml_document.read_document(file.read_text()).value
    ]


def read(sections: dict[str, Any], *, level: Level = Level.TOLERANT) -> ParsedPlaybook:
    """Read a document given as its sections; JSON is YAML."""
    fields = {key: item for key, item in {**HEAD, **sections}.items() if item is not None}
    return parse_playbook(msgspec.json.encode(fields).decode(), level=level)


def canonical(parsed: ParsedPlaybook) -> Playbook:
    assert parsed.playbook is not None, parsed.problems
    return parsed.playbook


def older_codes(parsed: ParsedPlaybook) -> list[str]:
    return sorted(
        {problem.code for problem in parsed.problems if problem.code.startswith("W90")} - {"W905"}
    )


@pytest.mark.parametrize("case", cases())
def test_an_older_form_loads_as_the_canonical_one(case: dict[str, Any]) -> None:
    parsed = read(case["older"])
    assert older_codes(parsed) == case["codes"]
    assert {problem.code for problem in parsed.problems} - {
        *case["codes"],
        "W905",
        "E205",
        "E303",
    } == set()
    found = canonical(parsed)
    if case["canonical"] is not None:
        today = canonical(read(case["canonical"]))
        # All that is left of the older dialect is what it says of missing values.
        assert dialect.write_undefined_mode(found, "strict") == today
        assert today == canonical(read(case["canonical"], level=Level.STRICT))


@pytest.mark.parametrize("case", cases())
def test_normalising_twice_changes_nothing(case: dict[str, Any]) -> None:
    once = canonical(read(case["older"]))
    again = parse_playbook(msgspec.json.encode(build_document(once)).decode())
    assert canonical(again) == once
    if case["canonical"] is not None:
        assert older_codes(again) == []


@pytest.mark.parametrize("case", [item for item in cases() if item.values[0]["codes"]])
def test_strict_refuses_it_and_its_replacements_lead_to_the_canonical_form(
    case: dict[str, Any],
) -> None:
    strict = read(case["older"], level=Level.STRICT)
    assert strict.playbook is None
    refused = [item for item in strict.problems if item.is_error]
    assert {item.code for item in refused} == set(case["codes"])
    assert all(item.replacement for item in refused)
    if case["canonical"] is None:
        return
    sections = {**HEAD, **case["older"]}
    for _ in range(ROUNDS_MAX):
        parsed = read(sections, level=Level.STRICT)
        problem = next((item for item in parsed.problems if item.is_error), None)
        if problem is None:
            break
        replace(sections, problem)
    assert canonical(parsed) == canonical(read(case["canonical"]))


@pytest.mark.parametrize("case", [item for item in cases() if item.values[0]["codes"]])
def test_no_replacement_holds_another_older_form(case: dict[str, Any]) -> None:
    for problem in read(case["older"], level=Level.STRICT).problems:
        if problem.replacement is not None and problem.code.startswith("W90"):
            assert older_keys(yaml_document.read_document(problem.replacement).value) == set(), (
                problem
            )


def older_keys(value: Any) -> set[str]:
    if isinstance(value, list):
        return set().union(*map(older_keys, value))
    if not isinstance(value, dict):
        return set()
    kinds = {"sql", "script", "result"} & {value.get("kind")}
    below = [older_keys(item) for key, item in value.items() if key not in NAMED_BY_AUTHORS]
    return (OLDER_KEYS & value.keys()).union(kinds, *below)


def replace(root: dict[str, Any], problem: Problem) -> None:
    """Do what a reader of the problem would: put the fragment in place of what it is about."""
    assert problem.replacement is not None
    fragment = yaml_document.read_document(problem.replacement).value
    *way, last = yaml_document.read_document(f"[{path_segments(problem.path)}]").value
    if "tool" in fragment and last in STRUCTURAL:
        replace_pipeline(root["workflow"][way[1]], fragment)
        return
    parent = at(root, way)
    if isinstance(parent, list):
        parent[last] = fragment
        return
    parent.pop(last, None)
    if last in ("tool", "type") and isinstance(fragment.get("tool"), dict):
        # The older input of a step is told of by itself.
        for key in (BESIDE - {"args"}) & parent.keys():
            parent.pop(key)
    # What stood under `spec` belongs beside it.
    is_moved = way[-1:] == ["spec"] and last != "policy"
    merge(at(root, way[:-1]) if is_moved else parent, fragment)


def replace_pipeline(step: dict[str, Any], fragment: dict[str, Any]) -> None:
    """Replace everything that a step says about its tasks."""
    for key in [*STRUCTURAL & step.keys(), "url", "params"]:
        step.pop(key, None)
    if isinstance(step.get("loop"), dict):
        for key in STRUCTURAL - {"iterator"}:
            step["loop"].pop(key, None)
    step.update(fragment)


def at(root: Any, way: list[Any]) -> Any:
    for segment in way:
        root = root[segment]
    return root


def path_segments(path: str) -> str:
    return ", ".join(part for part in path.replace("[", ".").replace("]", "").split(".") if part)


def merge(into: dict[str, Any], fragment: dict[str, Any]) -> None:
    for key, item in fragment.items():
        if isinstance(into.get(key), dict) and isinstance(item, dict):
            merge(into[key], item)
        else:
            into[key] = item


def test_root_vars_are_replaced_by_a_step_that_sets_them() -> None:
    older = {
        "vars": {"a": "{{ workload.b }}"},
        "workflow": [{"step": "s", "tool": {"kind": "noop"}}],
    }
    strict = read(older, level=Level.STRICT)
    (problem,) = strict.problems
    assert (problem.code, problem.path, problem.is_error) == ("W901", "vars", True)
    assert problem.replacement is not None
    (first,) = yaml_document.read_document(problem.replacement).value["workflow"]
    found = read({"workflow": [first, *older["workflow"]]}, level=Level.STRICT)
    assert canonical(found).workflow[0].set == {"ctx.a": "{{ workload.b }}"}
    assert [arc.step for arc in canonical(found).workflow[0].next.arcs] == ["s"]
