"""What is wrong with a playbook, in the forms that people and programs read."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from noetl_cli import render
from noetl_playbook.problems import Problem, Severity, text_form

SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"

Found = Sequence[tuple[str, Problem]]


def text_lines(found: Found) -> list[str]:
    """Write `file:line:column: severity code path: message (hint)`."""
    return [render.safe(text_form(problem, file=file)) for file, problem in found]


def github_lines(found: Found) -> list[str]:
    """Write workflow commands that annotate a pull request."""
    return [
        f"::{problem.severity} file={_property(file)},line={problem.line},col={problem.column},"
        f"title={problem.code}::{_message(_sentence(problem))}"
        for file, problem in found
    ]


def json_values(found: Found) -> list[dict[str, Any]]:
    """Build one value for each problem."""
    return [
        {"file": file, **{name: getattr(problem, name) for name in problem.__struct_fields__}}
        for file, problem in found
    ]


def sarif(found: Found) -> dict[str, Any]:
    """Build a SARIF 2.1.0 log of one run."""
    rules = sorted({problem.code for _, problem in found})
    return {
        "$schema": SARIF_SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "noetl lint",
                        "version": version("noetl-cli"),
                        "rules": [{"id": rule} for rule in rules],
                    }
                },
                "results": [_sarif_result(file, problem) for file, problem in found],
            }
        ],
    }


def _sarif_result(file: str, problem: Problem) -> dict[str, Any]:
    region = {"startLine": problem.line, "startColumn": problem.column}
    place = {"artifactLocation": {"uri": file}, "region": region}
    return {
        "ruleId": problem.code,
        "level": "error" if problem.severity is Severity.ERROR else "warning",
        "message": {"text": _sentence(problem)},
        "locations": [{"physicalLocation": place}],
    }


def _sentence(problem: Problem) -> str:
    return problem.message + (f" ({problem.hint})" if problem.hint else "")


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")
