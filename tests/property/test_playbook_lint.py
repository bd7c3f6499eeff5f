"""Whatever a document holds, lint answers; and what it accepts, the planner can use."""

import copy
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from noetl_contracts.ids import CatalogId
from noetl_planner.domain.decision.program import Program
from noetl_playbook.parse.mixed_text import read_mixed_bytes
from noetl_playbook.parse.playbook import ParsedPlaybook, parse_playbook
from noetl_playbook.source import yaml_document
from noetl_playbook.source.problems import Level
from noetl_playbook.source.yaml_document import UnreadableError

ROOT = Path(__file__).parents[2]
RIGHT = sorted((ROOT / "tests/unit/playbook/right").glob("*.yaml"))
RICH = (ROOT / "tests/unit/playbook/right/rich.yaml").read_text("utf-8")


def sources() -> list[Any]:
    files = [
        *sorted((ROOT / "docs/examples").glob("*.yaml")),
        *sorted((ROOT / "workloads").glob("**/playbooks/*.yaml")),
        *RIGHT,
        *sorted((ROOT / "tests/unit/playbook/wrong").glob("*.yaml")),
    ]
    found: list[Any] = []
    for file in files:
        try:
            found.append(yaml_document.read_document(file.read_text("utf-8")).value)
        except UnreadableError:
            continue
    return found


GOOD = [yaml_document.read_document(file.read_text("utf-8")).value for file in RIGHT]
SOURCES = sources()
WORDS = st.sampled_from(
    [
        *("kind", "tool", "step", "spec", "loop", "next", "arcs", "when", "set", "mode", "in"),
        *("http", "python", "parallel", "{{ a.b }}", "{{ a", "{% if x %}", "ctx.a", "begin"),
        *("", "yes", "30s", "64MiB", "5%", "\u2028", "\x85", "é" * 5, "__frame_id", "<<", "=", "~"),
    ]
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(allow_nan=False, allow_infinity=False),
    WORDS,
    st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=8),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(WORDS, st.text("ab", max_size=3)), inner, max_size=4),
    ),
    max_leaves=20,
)


def text_of(value: Any) -> str:
    """JSON is YAML."""
    return msgspec.json.encode(value).decode()


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    below = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [path, *(place for key, item in below for place in places(item, (*path, key)))]


@st.composite
def mutations(draw: st.DrawFn) -> Any:
    value = copy.deepcopy(draw(st.one_of(st.sampled_from(GOOD), st.sampled_from(SOURCES))))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(places(value)))
        if not path:
            continue
        *above, last = path
        here = value
        for key in above:
            here = here[key]
        match draw(st.sampled_from(["replace", "remove", "add"])):
            case "replace":
                here[last] = draw(VALUES)
            case "remove":
                del here[last]
            case _ if isinstance(here, dict):
                here[draw(WORDS)] = draw(VALUES)
            case _:
                here.append(draw(VALUES))
    return value


def answered(text: str, level: Level) -> ParsedPlaybook:
    parsed = parse_playbook(text, level=level)
    assert (parsed.playbook is None) == any(problem.is_error for problem in parsed.problems)
    positions = [(problem.line, problem.column) for problem in parsed.problems]
    assert positions == sorted(positions)
    lines = text.count("\n") + 1
    assert all(line >= 1 and column >= 1 for line, column in positions)
    assert "\x85" in text or "\u2028" in text or all(line <= lines for line, _ in positions)
    return parsed


@given(VALUES, st.sampled_from(list(Level)))
@settings(max_examples=300)
def test_any_value_gets_an_answer(value: Any, level: Level) -> None:
    answered(text_of(value), level)


@given(st.binary(max_size=200))
@settings(max_examples=300)
def test_any_bytes_get_an_answer(data: bytes) -> None:
    mixed = read_mixed_bytes(data)
    assert mixed.playbooks or mixed.subscriptions
    for parsed in mixed.playbooks:
        assert parsed.playbook is not None or parsed.problems


@given(mutations(), st.sampled_from(list(Level)))
@settings(max_examples=400)
def test_a_changed_playbook_gets_an_answer_and_what_is_accepted_can_be_used(
    value: Any, level: Level
) -> None:
    parsed = answered(text_of(value), level)
    if parsed.playbook is not None:
        program = Program(
            parsed.playbook, catalog_id=CatalogId(1), catalog_version=1, digest="sha256:0"
        )
        assert set(program.steps) == {step.step for step in parsed.playbook.workflow}


@given(st.integers(0, len(RICH)), st.integers(0, 40), st.text("{}[]:'\"|>&*!%#-\t\n a", max_size=6))
@settings(max_examples=400)
def test_a_playbook_with_a_damaged_place_gets_an_answer(at: int, length: int, put: str) -> None:
    answered(RICH[:at] + put + RICH[at + length :], Level.STRICT)
