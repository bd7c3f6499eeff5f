"""Properties of the source itself. Each failure says what to do."""

import ast
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from noetl_contracts.events import CLASS_BY_TYPE

ROOT = Path(__file__).parents[2]
TOPS = ("libs", "services", "cli", "workloads")
FUNCTION_LINES_MAX = 80
FILE_LINES_MAX = 600
# The planner names its adapters, each on its own line.
MAIN_LINES_MAX = 115
EMPTY_NAMES = {"base", "common", "core", "helpers", "manager", "misc", "util", "utils"}
SERVICE_ROOMS = {"__init__.py", "__main__.py", "settings.py", "service.py"}
BROAD = {"Exception", "BaseException"}
# Everywhere else a catch of everything must raise again.
BROAD_HOMES = {
    "libs/storage/src/noetl_storage/payloads/thread_runner.py": "raised by the call",
    "libs/chassis/src/noetl_chassis/loop.py": "a loop outlives whatever one turn met",
    "services/reaper/src/noetl_reaper/service.py": "one duty must not end the others",
    "services/planner/src/noetl_planner/service.py": "one execution must not hold back a batch",
    "services/worker/src/noetl_worker/runner/command_host.py": "a command's own failure",
    "services/worker/src/noetl_worker/service.py": "one delivery must not end the others",
    "services/worker/src/noetl_worker/sandbox/__main__.py": "what user code raises is its answer",
    "services/worker/src/noetl_worker/spark/code/main_call.py": "what `main` raises",
}
# The language's own older event names, as authors write them.
EVENT_NAME_HOMES = (
    "libs/contracts/",
    "libs/playbook/src/noetl_playbook/model/language_names.py",
    "workloads/",
)
ENVIRONMENT_HOMES = {"settings.py", "__main__.py"}
# `multiprocessing` sends what it is given as pickles.
INTERPRETER_FORMS = {
    "cloudpickle",
    "dill",
    "joblib",
    "marshal",
    "multiprocessing",
    "pickle",
    "shelve",
}
EXAMINED = (
    ast.Attribute,
    ast.Constant,
    ast.ExceptHandler,
    ast.AsyncFunctionDef,
    ast.FunctionDef,
    ast.Import,
    ast.ImportFrom,
    ast.keyword,
)
UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b")
HISTORY = re.compile(
    r"\b(?:used to be|legacy|deprecated|refactored|workaround for)\b", re.IGNORECASE
)
EXCLUSION = re.compile(r"#\s*(?:noqa(?::\s*(?P<codes>[A-Z0-9, ]+))?|type:\s*ignore(?:\[[^\]]*\])?)")


def sources() -> Iterator[Path]:
    for top in TOPS:
        yield from sorted((ROOT / top).glob("**/src/**/*.py"))


def checks() -> Iterator[Path]:
    yield from sorted((ROOT / "tests").glob("**/*.py"))


@cache
def nodes() -> list[tuple[str, ast.AST]]:
    """Return every node of the sources that a rule may be about, with its file; read once."""
    return [
        (place(path), node)
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, EXAMINED)
    ]


def comments(path: Path, *sought: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    """Yield the comments of a file that has what is sought: to find them takes long."""
    text = path.read_text()
    if not any(pattern.search(text) for pattern in sought):
        return
    with path.open("rb") as opened:
        for token in tokenize.tokenize(opened.readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string


def place(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_no_file_outgrows_one_idea() -> None:
    lengths = {place(path): len(path.read_text().splitlines()) for path in sources()}
    long = {path: lines for path, lines in lengths.items() if lines > FILE_LINES_MAX}
    assert not long, f"split by noun, not by size: {long}"


def test_every_function_fits_on_a_screen() -> None:
    long = [
        f"{path}:{node.lineno} {node.name}"
        for path, node in nodes()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or node.lineno) - node.lineno >= FUNCTION_LINES_MAX
    ]
    assert not long, f"keep the branches, move the work out: {long}"


def test_no_module_is_named_after_nothing() -> None:
    vague = [place(path) for path in sources() if path.stem in EMPTY_NAMES]
    assert not vague, f"name the thing it is about: {vague}"


def test_every_service_has_the_same_rooms() -> None:
    for package in sorted((ROOT / "services").glob("*/src/*/")):
        rooms = {child.name for child in package.iterdir()}
        assert rooms >= SERVICE_ROOMS, f"{package} lacks {SERVICE_ROOMS - rooms}"
        assert rooms & {"domain", "domain.py"}, f"{package} has no domain"


def test_event_types_are_spelled_in_one_place() -> None:
    strays = [
        f"{path}:{node.lineno} {node.value!r}"
        for path, node in nodes()
        # The workload's verifier is a witness: it must not share the engine's table.
        if not path.startswith(EVENT_NAME_HOMES)
        and isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value in CLASS_BY_TYPE
    ]
    assert not strays, f"import the event class instead: {strays}"


def test_every_module_says_in_one_line_what_it_is_about() -> None:
    missing = []
    for path in sources():
        docstring = ast.get_docstring(ast.parse(path.read_text()))
        first = (docstring or "").splitlines()[:1]
        if not first or not first[0].endswith((".", ":")):
            missing.append(place(path))
    assert not missing, f"begin with one sentence about the file: {missing}"


def test_a_composition_root_is_short_and_does_not_branch() -> None:
    wrong = []
    for path in sorted((ROOT / "services").glob("*/src/*/__main__.py")):
        text = path.read_text()
        body = [node for node in ast.parse(text).body if not _is_entry(node)]
        branches = [
            node for top in body for node in ast.walk(top) if isinstance(node, ast.If | ast.Match)
        ]
        if branches or len(text.splitlines()) > MAIN_LINES_MAX:
            wrong.append(place(path))
    assert not wrong, f"wire here, decide elsewhere: {wrong}"


def _is_entry(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.dump(node.test)


def test_whom_a_connection_trusts_is_said_once() -> None:
    output = [place(path) for path in sources() if "verify_paths" in path.read_text()]
    assert output == ["libs/storage/src/noetl_storage/process/curl.py"]


def test_few_places_survive_every_error() -> None:
    broad = [
        f"{path}:{node.lineno}"
        for path, node in nodes()
        if isinstance(node, ast.ExceptHandler)
        and _names(node.type) & BROAD
        and not any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
        and path not in BROAD_HOMES
    ]
    assert not broad, f"name what may fail, or raise it again: {broad}"


def test_no_error_is_passed_over_in_silence() -> None:
    silent = [
        f"{path}:{node.lineno}"
        for path, node in nodes()
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or all(isinstance(step, ast.Pass) for step in node.body))
    ]
    assert not silent, f"say why it may be ignored, with contextlib.suppress: {silent}"


def _names(kind: ast.expr | None) -> set[str]:
    return {node.id for node in ast.walk(kind) if isinstance(node, ast.Name)} if kind else set()


def test_the_environment_is_read_in_settings_alone() -> None:
    readers = [
        f"{path}:{node.lineno}"
        for path, node in nodes()
        if isinstance(node, ast.Attribute)
        and node.attr in {"environ", "getenv"}
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
        and Path(path).name not in ENVIRONMENT_HOMES
        and not path.startswith("workloads/")
    ]
    assert not readers, f"read it in settings.py and pass the value on: {readers}"


def test_nothing_is_left_to_do_and_nothing_tells_history() -> None:
    found = [
        f"{place(path)}:{line} {text}"
        for path in sources()
        for line, text in comments(path, UNFINISHED, HISTORY)
        if UNFINISHED.search(text) or HISTORY.search(text)
    ]
    assert not found, f"do it, or open an issue; git keeps the history: {found}"


def test_every_exclusion_carries_its_reason() -> None:
    bare = [
        f"{place(path)}:{line} {text}"
        for path in [*sources(), *checks()]
        for line, text in comments(path, EXCLUSION)
        if (match := EXCLUSION.search(text)) and len(text[match.end() :].strip(" -#")) < 4
    ]
    assert not bare, f"say on the line why the rule does not hold here: {bare}"


def test_annotations_are_left_as_they_are() -> None:
    lazy = [
        path
        for path, node in nodes()
        if isinstance(node, ast.ImportFrom) and node.module == "__future__"
    ]
    assert not lazy, f"msgspec reads annotations at run time: {lazy}"


def test_no_package_but_the_union_of_events_has_code_in_its_init() -> None:
    allowed = {"libs/contracts/src/noetl_contracts/events/__init__.py"}
    full = []
    for path in sources():
        if path.name != "__init__.py" or place(path) in allowed:
            continue
        imports = [
            node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ImportFrom)
        ]
        if imports and all(alias.asname is None for node in imports for alias in node.names):
            used = path.read_text().count("def ")
            if not used:
                full.append(place(path))
    assert not full, f"one object, one path: no re-exports in {full}"


def test_nothing_is_written_in_the_form_of_one_interpreter() -> None:
    """Payloads, messages and caches are JSON or Arrow: no reader needs Python, or runs code."""
    found = [
        f"{path}:{getattr(node, 'lineno', '?')}"
        for path, node in nodes()
        if INTERPRETER_FORMS & _imported(node)
        or (isinstance(node, ast.keyword) and node.arg == "allow_pickle")
        or (isinstance(node, ast.Attribute) and node.attr in {"read_pickle", "to_pickle"})
    ]
    assert not found, f"encode with noetl_contracts.codec, or as Arrow: {found}"


def _imported(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name.partition(".")[0] for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        return {(node.module or "").partition(".")[0]}
    return set()


def test_no_test_waits_for_time_alone() -> None:
    sleepers = [
        f"{place(path)}:{line}"
        for path in checks()
        if ".sleep(" in (text := path.read_text())
        for function in ast.walk(ast.parse(text))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        and function.name.startswith("test_")
        for line in _sleeps(function)
    ]
    assert not sleepers, f"wait for the event (tests.support.polling.eventually): {sleepers}"


def _sleeps(function: ast.AST) -> Iterator[int]:
    """Lines that sleep, but for a loop's own rest between two looks and for a mere yield."""
    for child in ast.iter_child_nodes(function):
        if isinstance(child, ast.While):
            continue
        if (
            isinstance(child, ast.Call)
            and isinstance(child.func, ast.Attribute)
            and child.func.attr == "sleep"
            and not (isinstance(child.args[0], ast.Constant) and child.args[0].value == 0)
        ):
            yield child.lineno
        yield from _sleeps(child)


def test_no_two_files_of_tests_have_one_name() -> None:
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    repeated = [name for name, count in names.items() if count > 1]
    assert not repeated, f"pytest collects one of them in `make test K=...`; rename: {repeated}"
