"""What is wrong with a playbook, in the forms that people and programs read."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from noetl_cli import terminal_output
from noetl_contracts.written_names import escape_line
from noetl_playbook.source.code_table import CODES, CodeWeight, ProblemCode
from noetl_playbook.source.problems import Problem, Severity, format_problem
from noetl_storage.process.lazy_import import LazyModule

if TYPE_CHECKING:
    from importlib import metadata
else:
    # It is wanted for one format, and loads what reads mail.
    metadata = LazyModule("importlib.metadata")

SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"

EXCERPT_CHARACTERS_MAX = 120
EXCERPT_BEFORE_MAX = 90

FileProblems = Sequence[tuple[str, Problem]]


def format_text_lines(file_problems: FileProblems) -> list[str]:
    """Write `file:line:column: severity code path: message (hint)`."""
    return [escape_line(format_problem(problem, file=file)) for file, problem in file_problems]


def format_github_lines(file_problems: FileProblems) -> list[str]:
    """Write workflow commands that annotate a pull request."""
    return [
        f"::{problem.severity} file={_escape_property(file)},line={problem.line},"
        f"col={problem.column},"
        f"title={problem.code}::{_escape_message(_format_problem(problem))}"
        for file, problem in file_problems
    ]


def build_json_values(file_problems: FileProblems) -> list[dict[str, Any]]:
    """Build one value for each problem."""
    return [
        {"file": file, **{name: getattr(problem, name) for name in problem.__struct_fields__}}
        for file, problem in file_problems
    ]


def show_diagnostics(file_problems: FileProblems, sources: Mapping[str, str]) -> None:
    """Show each problem with its line of the source and a caret below the place."""
    out = terminal_output.open_console()
    lines = {name: text.splitlines() for name, text in sources.items()}
    for file, problem in file_problems:
        colour = "red" if problem.is_error else "yellow"
        place = f"{escape_line(file)}:{problem.line}:{problem.column}:"
        out.print(place, style="bold", end=" ", markup=False)
        out.print(f"{problem.severity} {problem.code}", style=f"bold {colour}", end=" ")
        out.print(escape_line(problem.message), markup=False)
        for line in _cut_excerpt(lines.get(file, []), problem):
            out.print(line, style="dim", markup=False)
        if problem.hint:
            out.print("  hint:", style="bold cyan", end=" ")
            out.print(escape_line(problem.hint), markup=False)
        if problem.replacement:
            out.print("  write:", style="bold cyan", end=" ")
            out.print(terminal_output.escape_controls(problem.replacement), markup=False)


def _cut_excerpt(lines: list[str], problem: Problem) -> list[str]:
    """Cut the line of a problem to the terminal's measure, with a caret under its column."""
    if not 1 <= problem.line <= len(lines):
        return []
    start = max(0, problem.column - 1 - EXCERPT_BEFORE_MAX)
    # One character for each, so that the caret stays under its place.
    excerpt = lines[problem.line - 1][start : start + EXCERPT_CHARACTERS_MAX]
    excerpt = "".join(item if item.isprintable() else " " for item in excerpt)
    margin = " " * len(str(problem.line))
    return [
        f" {problem.line} | {excerpt}",
        f" {margin} | {' ' * (problem.column - 1 - start)}^",
    ]


def build_sarif_log(file_problems: FileProblems) -> dict[str, Any]:
    """Build a SARIF 2.1.0 log of one run; its rules are all codes, found or not."""
    return {
        "$schema": SARIF_SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "noetl lint",
                        "version": metadata.version("noetl"),
                        "rules": [_build_sarif_rule(code) for code in CODES.values()],
                    }
                },
                # Columns count characters, not UTF-16 units.
                "columnKind": "unicodeCodePoints",
                "results": [_build_sarif_result(file, problem) for file, problem in file_problems],
            }
        ],
    }


def _build_sarif_rule(code: ProblemCode) -> dict[str, Any]:
    is_error = code.weight in (CodeWeight.ERROR, CodeWeight.STRICT_ERROR)
    text = f"{code.advice}\n\nwrong: {code.wrong}\nright: {code.right}"
    return {
        "id": code.code,
        "shortDescription": {"text": code.title},
        "fullDescription": {"text": f"{code.title}. {code.advice}"},
        "help": {"text": text},
        "defaultConfiguration": {"level": "error" if is_error else "warning"},
    }


def _build_sarif_result(file: str, problem: Problem) -> dict[str, Any]:
    region = {"startLine": problem.line, "startColumn": problem.column}
    place = {"artifactLocation": {"uri": quote(file)}, "region": region}
    return {
        "ruleId": problem.code,
        "ruleIndex": list(CODES).index(problem.code),
        "level": "error" if problem.severity is Severity.ERROR else "warning",
        "message": {"text": _format_problem(problem)},
        "locations": [{"physicalLocation": place}],
    }


def _format_problem(problem: Problem) -> str:
    return problem.message + (f" ({problem.hint})" if problem.hint else "")


def _escape_message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape_message(text).replace(":", "%3A").replace(",", "%2C")
