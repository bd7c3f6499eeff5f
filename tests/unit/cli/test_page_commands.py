"""Commands, addresses, variables and values of charts in the pages of docs/ are there.

Nothing is run: the shell checks the syntax, the command line parses the words of each `noetl`, the
API has the addresses of each `curl`, and each service has the settings that are named.
"""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from tests.support.api import ApiWorld
from tests.support.page_samples import VALUES_TITLE, Sample, list_blocks
from typer._click.exceptions import UsageError

from noetl_chassis import failpoints
from noetl_cli.__main__ import app
from noetl_cli.settings import AUDIT_PREFIX, AuditAccess
from noetl_messaging.settings import Settings as MessagingSettings
from noetl_outbox.settings import Settings as OutboxSettings
from noetl_planner.api.app import create_app
from noetl_planner.settings import Settings as PlannerSettings
from noetl_projector.settings import Settings as ProjectorSettings
from noetl_reaper.settings import Settings as ReaperSettings
from noetl_worker.settings import Settings as WorkerSettings

ROOT = Path(__file__).parents[3]
PAGES = sorted(
    page
    for folder in ("reference", "explanation", "operations", "how-to")
    for page in ROOT.glob(f"docs/{folder}/**/*.md")
)
SETTINGS = (OutboxSettings, PlannerSettings, ProjectorSettings, ReaperSettings, WorkerSettings)
SERVICES = ("outbox", "planner", "projector", "reaper", "worker")
VARIABLE = re.compile(r"\bNOETL_[A-Z][A-Z0-9_]*[A-Z0-9]\b(?![*<…])")
FAILPOINTS = re.compile(r"FAILPOINTS=\"([^\"]+)\"")
SET_OPTION = re.compile(r"--set ([A-Z][A-Z0-9_]*)=")
MAKE_TARGET = re.compile(r"\bmake ([a-z]+(?:/[a-z]+)?)")
ADDRESS = re.compile(r"\$API(/api/[^\s\"'?#]*)")
METHOD = re.compile(r"-X ([A-Z]+)")
# A word of a page for which a reader has a value: an id, a number, a name.
PLACEHOLDER = re.compile(r"^[A-Z]+$")
# What is read beside the settings of services, by programs of this repository.
SEARCHED = ("libs", "services", "cli", "deploy", "tests/support", "tests/conformance", "Makefile")


def list_commands(text: str) -> Iterator[str]:
    """Yield the commands of a shell block, without prompts and what they print."""
    joined = text.replace("\\\n", " ")
    has_prompts = re.search(r"^\$ ", joined, re.MULTILINE)
    for line in joined.splitlines():
        if has_prompts and not line.startswith("$ "):
            continue
        if command := line.removeprefix("$ ").strip():
            yield command


BLOCKS = [
    block
    for page in PAGES
    for language in ("sh", "console")
    for block in list_blocks(page, language)
]
COMMANDS = [(block, command) for block in BLOCKS for command in list_commands(block.text)]
VALUES = [
    block for page in PAGES for block in list_blocks(page, "yaml") if block.title == VALUES_TITLE
]
PYTHON_BLOCKS = [
    block
    for page in PAGES
    if page.parent.name in {"explanation", "operations"}
    for block in list_blocks(page, "python")
]
JSON_BLOCKS = [block for page in PAGES for block in list_blocks(page, "json")]


def name_block(block: Sample) -> str:
    return f"{block.page.stem}-{block.line}"


def find_wrong_words(words: list[str]) -> str:
    """Parse the words of a `noetl`, with those of its verbs; return what is wrong with them."""
    command = typer.main.get_command(app)
    context = None
    names = list(words)
    try:
        while True:
            context = command.make_context(
                command.name or "noetl", names, parent=context, resilient_parsing=False
            )
            if not hasattr(command, "resolve_command"):
                return ""
            remaining = [*context._protected_args, *context.args]
            _, command, names = command.resolve_command(context, remaining)
    except UsageError as wrong:
        return wrong.format_message()
    except typer.Exit:
        # It asks for help.
        return ""


@pytest.mark.parametrize("block", BLOCKS, ids=name_block)
def test_a_block_is_right_to_the_shell(block: Sample) -> None:
    text = "\n".join(list_commands(block.text))
    checked = subprocess.run(
        ["/bin/bash", "-n"], input=text, capture_output=True, text=True, check=False
    )
    assert checked.stderr == ""


@pytest.mark.parametrize("block", BLOCKS, ids=name_block)
def test_the_command_line_knows_each_noetl(block: Sample) -> None:
    wrong = []
    for command in list_commands(block.text):
        words = shlex.split(command, comments=True)
        words = words[: next((n for n, word in enumerate(words) if word in {"|", ">"}), None)]
        while words and re.match(r"[A-Z_]+=", words[0]):
            words = words[1:]
        words = [PLACEHOLDER.sub("7", word) for word in words]
        if words[:1] == ["noetl"] and (problem := find_wrong_words(words[1:])):
            wrong.append(f"{command}: {problem}")
    assert wrong == []


def test_wrong_words_are_noticed() -> None:
    assert "No such command" in find_wrong_words(["execute", "1"])
    assert "No such option" in find_wrong_words(["retention", "run", "--dryrun"])
    assert "Missing argument" in find_wrong_words(["cancel"])
    assert find_wrong_words(["retention", "run", "--dry-run"]) == ""


@cache
def list_routes() -> dict[str, set[str]]:
    """Return the methods of each address of the API, by a pattern of it."""
    paths = create_app(ApiWorld().services()).openapi_schema.to_schema()["paths"]
    return {
        re.sub(r"\{[^}]+\}", "[^/]+", path): {entry.upper() for entry in item}
        for path, item in paths.items()
    }


def list_wrong_addresses(command: str) -> list[str]:
    """List the addresses of a `curl` that the API does not have for its method."""
    told = METHOD.search(command)
    method = told[1] if told else "POST" if " -d " in command else "GET"
    return [
        f"{method} {address}"
        for address in ADDRESS.findall(command)
        if not any(
            method in methods and re.fullmatch(pattern, address)
            for pattern, methods in list_routes().items()
        )
    ]


@pytest.mark.parametrize("block", BLOCKS, ids=name_block)
def test_the_api_has_each_address(block: Sample) -> None:
    wrong = [
        wrong_address
        for command in list_commands(block.text)
        for wrong_address in list_wrong_addresses(command)
    ]
    assert wrong == []


def test_a_wrong_address_is_noticed() -> None:
    assert list_wrong_addresses('curl -s "$API/api/execut" -d 1') == ["POST /api/execut"]
    assert list_wrong_addresses('curl -X PUT "$API/api/execute"') == ["PUT /api/execute"]
    assert list_wrong_addresses('curl -s "$API/api/executions/7/status"') == []


@cache
def list_variables() -> frozenset[str]:
    """Return every variable that a program of the repository reads."""
    programs = [*zip(SERVICES, SETTINGS, strict=True), ("messaging", MessagingSettings)]
    fields = {
        f"NOETL_{program.upper()}_{field.upper()}"
        for program, settings in programs
        for field in settings.__struct_fields__
    }
    fields |= {f"{AUDIT_PREFIX}{field.upper()}" for field in AuditAccess.__struct_fields__}
    for place in SEARCHED:
        files = [ROOT / place] if (ROOT / place).is_file() else (ROOT / place).rglob("*")
        for file in files:
            if file.suffix in {".py", ".yaml", ".sh", ""} and file.is_file():
                fields |= set(VARIABLE.findall(file.read_text("utf-8", errors="ignore")))
    return frozenset(fields)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT / "docs")))
def test_each_variable_is_read_by_a_program(page: Path) -> None:
    text = page.read_text("utf-8")
    named = set(VARIABLE.findall(text)) | {f"NOETL_{name}" for name in SET_OPTION.findall(text)}
    assert sorted(named - list_variables()) == []


def test_each_make_target_is_there() -> None:
    rules = re.findall(r"(?m)^([a-z0-9/ ]+):", (ROOT / "Makefile").read_text())
    targets = {target for rule in rules for target in rule.split()}
    targets |= {f"proof/{file.stem}" for file in (ROOT / "tests/proof").glob("*.py")}
    named = {target for _, command in COMMANDS for target in MAKE_TARGET.findall(command)}
    assert named
    assert named <= targets


@cache
def read_charts() -> dict[str, dict[str, Any]]:
    """Return the values of each service's chart."""
    return {
        service: yaml.safe_load((ROOT / f"deploy/helm/{service}/values.yaml").read_text())
        for service in SERVICES
    }


def list_unknown_values(values: Any, chart: Any, service: str, path: str = "") -> list[str]:
    """List the keys that a chart's values lack; settings are those of the service."""
    unknown = []
    for key, value in values.items():
        place = f"{path}.{key}".lstrip(".")
        if path == "settings":
            field = re.sub(r"[A-Z]", lambda found: f"_{found[0].lower()}", key)
            if field not in SETTINGS[SERVICES.index(service)].__struct_fields__:
                unknown.append(place)
        elif key not in chart:
            unknown.append(place)
        elif isinstance(value, dict) and isinstance(chart[key], dict) and chart[key]:
            unknown += list_unknown_values(value, chart[key], service, place)
    return unknown


@pytest.mark.parametrize("block", VALUES, ids=name_block)
def test_a_chart_has_each_value(block: Sample) -> None:
    values = yaml.safe_load(block.text)
    unknown = {
        service: list_unknown_values(values, chart, service)
        for service, chart in read_charts().items()
    }
    assert [] in unknown.values(), unknown


def test_unknown_values_are_noticed() -> None:
    chart = read_charts()["worker"]
    assert list_unknown_values({"settings": {"zoon": "a"}}, chart, "worker") == ["settings.zoon"]
    assert list_unknown_values({"scaling": {"consumer": []}}, chart, "worker") == [
        "scaling.consumer"
    ]


@pytest.mark.parametrize("block", JSON_BLOCKS, ids=name_block)
def test_a_json_block_can_be_read(block: Sample) -> None:
    lines = block.text.strip().splitlines()
    try:
        json.loads(block.text)
    except ValueError:
        assert [json.loads(line) for line in lines]


@pytest.mark.parametrize("block", PYTHON_BLOCKS, ids=name_block)
def test_a_python_block_runs(block: Sample) -> None:
    done = subprocess.run(  # noqa: S603 - lines of our own page
        [sys.executable, "-c", block.text], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_each_plan_of_failpoints_can_be_read() -> None:
    plans = [plan for _, command in COMMANDS for plan in FAILPOINTS.findall(command)]
    assert plans
    assert None not in [failpoints.parse_plan(plan) for plan in plans]
