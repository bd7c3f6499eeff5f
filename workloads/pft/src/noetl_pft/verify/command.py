"""`pft begin` and `pft verify`."""

import argparse
import asyncio
import json
import secrets
import sys
from pathlib import Path

import aiohttp
from rich.console import Console
from rich.table import Table

from noetl_pft.fixture.faults import FaultError, parse_rules
from noetl_pft.fixture.ledger import RunNameError, build_ledger_path
from noetl_pft.fixture.supervisor import build_default_ledger_root
from noetl_pft.verify.checks import RunTerms, WitnessError
from noetl_pft.verify.verdict import RunVerdict, judge_run

_PATIENCE_S = 30
PASSED, DIFFERENT, NO_VERDICT = 0, 1, 2


def add_begin_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pft begin`."""
    parser.add_argument("--control", default="http://127.0.0.1:5556", help="control port's URL")


def begin_run(arguments: argparse.Namespace) -> int:
    """Make a nonce, start its request ledger and print it."""
    nonce = secrets.token_hex(8)
    try:
        asyncio.run(_reset_ledger(arguments.control, nonce))
    except (OSError, TimeoutError, aiohttp.ClientError, ValueError) as problem:
        sys.stderr.write(f"pft begin: the fixture's control port does not obey: {problem}\n")
        return NO_VERDICT
    sys.stdout.write(nonce + "\n")
    return PASSED


async def _reset_ledger(control: str, nonce: str) -> None:
    patience = aiohttp.ClientTimeout(total=_PATIENCE_S)
    async with (
        aiohttp.ClientSession(timeout=patience) as http,
        http.post(f"{control}/reset", json={"run": nonce}) as answer,
    ):
        answer.raise_for_status()


def add_verify_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pft verify`."""
    parser.add_argument("--variant", required=True, choices=["a", "b", "c"])
    parser.add_argument("--facilities", required=True, type=int)
    parser.add_argument("--patients", required=True, type=int)
    parser.add_argument("--execution", default="", help="not needed with --floor")
    parser.add_argument("--nonce", required=True, help="what `pft begin` printed")
    parser.add_argument("--dsn", required=True, help="target database")
    parser.add_argument("--event-dsn", default="", help="database with noetl.event")
    parser.add_argument("--ledger-dir", type=Path, default=build_default_ledger_root())
    parser.add_argument("--faults", type=Path, help="the fault rules of the run, JSON")
    parser.add_argument(
        "--disturbed", action="store_true", help="processes were killed or paused during the run"
    )
    parser.add_argument("--fan-out", action="store_true", help="variant c ran with fan_out")
    parser.add_argument("--floor", action="store_true", help="the run was the raw floor")
    parser.add_argument("--exactly-once", action="store_true")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--frame-rows", type=int, default=50)
    parser.add_argument("--max-attempts", type=int, default=10)
    parser.add_argument("--json", type=Path, help="where to write the report")


def verify_run(arguments: argparse.Namespace) -> int:
    """Judge a run; 0 passed, 1 different, 2 no verdict."""
    try:
        terms = _build_terms(arguments)
        ledger = build_ledger_path(arguments.ledger_dir, terms.nonce)
        verdict = asyncio.run(
            judge_run(
                terms,
                dsn=arguments.dsn,
                event_dsn=arguments.event_dsn or arguments.dsn,
                ledger=ledger,
            )
        )
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(verdict.as_json(), indent=1))
    except (WitnessError, RunNameError, FaultError, OSError, ValueError) as problem:
        sys.stderr.write(f"pft verify: no verdict: {problem}\n")
        return NO_VERDICT
    _print_verdict(verdict)
    return PASSED if verdict.has_passed else DIFFERENT


def _build_terms(arguments: argparse.Namespace) -> RunTerms:
    if not arguments.floor and not arguments.execution:
        raise WitnessError("--execution is needed, except with --floor")
    rules = json.loads(arguments.faults.read_text()) if arguments.faults else []
    return RunTerms(
        variant=arguments.variant,
        facilities=arguments.facilities,
        patients=arguments.patients,
        execution=arguments.execution,
        nonce=arguments.nonce,
        is_fault_free=arguments.faults is None and not arguments.disturbed,
        is_floor=arguments.floor,
        is_exactly_once=arguments.exactly_once,
        rules=frozenset(rule.id for rule in parse_rules(rules)),
        slots=arguments.slots,
        frame_rows=arguments.frame_rows,
        max_attempts=arguments.max_attempts,
        fans_out=arguments.variant != "c" or arguments.fan_out,
    )


def _print_verdict(verdict: RunVerdict) -> None:
    terms = verdict.terms
    title = f"PFT {terms.variant.upper()} {terms.facilities}x{terms.patients}"
    table = Table("check", "", "inspected", "differences", "what it says", title=title)
    for check in verdict.checks:
        passed = check.has_passed
        mark = "[green]ok[/]" if passed else "[red]FAILED[/]"
        table.add_row(check.name, mark, str(check.inspected), str(check.wrong), check.title)
    console = Console()
    console.print(table)
    for check in verdict.checks:
        for line in check.first_differences:
            console.print(f"{check.name}: {line}", markup=False, highlight=False)
    console.print("passed" if verdict.has_passed else "[red]NOT passed[/]")
