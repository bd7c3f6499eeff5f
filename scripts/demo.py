"""The whole system in one minute: real servers, PFT, an outside verifier, no traces."""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
PLAYBOOKS = ROOT / "workloads/pft/src/noetl_pft/playbooks"

console = Console()


def main() -> int:
    """Run the demo; the exit code is the verifier's."""
    options = _arguments()
    folder = Path(tempfile.mkdtemp(prefix="noetl-demo-"))
    # The command finds the token of the stack that it asks in this folder.
    os.environ["NOETL_HOME"] = str(folder / "stack")
    started = time.monotonic()
    try:
        with (
            _fixture(folder) as fixture,
            _stack(folder / "stack", fixture, workers=options.workers) as state,
        ):
            console.print(f"\n[bold]API[/bold] (while this runs): {state['urls']['api']}\n")
            code = _run_and_verify(folder, state, fixture, options)
    except subprocess.CalledProcessError as failure:
        console.print(
            f"[red]{' '.join(map(str, failure.cmd[1:3]))} ended with {failure.returncode}"
        )
        code = 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    console.print(f"Nothing is left running. {time.monotonic() - started:.0f} s in all.")
    return code


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variant", default="a", choices=["a", "b", "c"], help="playbook")
    parser.add_argument("--facilities", type=int, default=2)
    parser.add_argument("--patients", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    return parser.parse_args()


@contextmanager
def _stack(folder: Path, fixture: dict, *, workers: int) -> Iterator[dict]:  # type: ignore[type-arg]  # JSON
    console.rule("PostgreSQL, NATS JetStream, SeaweedFS and five services")
    try:
        place = urlsplit(fixture["api"]).netloc
        _noetl("up", "--dir", folder, "--workers", workers, "--allow-http", place)
        yield json.loads((folder / "state.json").read_text())
    finally:
        console.rule("Stopping")
        _noetl("down", "--dir", folder, "--purge")


@contextmanager
def _fixture(folder: Path) -> Iterator[dict]:  # type: ignore[type-arg]  # JSON
    ledger = folder / "requests"
    ledger.mkdir()
    command = [BIN / "pft", "serve", "--port", "0", "--control-port", "0", "--ledger-dir", ledger]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - our own command
        assert process.stdout is not None
        try:
            yield {**json.loads(process.stdout.readline()), "ledger": ledger}
        finally:
            process.terminate()


def _run_and_verify(folder: Path, state: dict, fixture: dict, arguments: argparse.Namespace) -> int:  # type: ignore[type-arg]  # JSON
    api, target = state["urls"]["api"], state["urls"]["target"]
    nonce = _output("pft", "begin", "--control", fixture["control"]).split()[-1]
    credential = folder / "credential.json"
    credential.write_text(json.dumps({"dsn": target}))
    _noetl("credential", "put", "pg_pft", "--type", "postgres", "--file", credential, server=api)
    console.rule(
        f"PFT {arguments.variant.upper()}: {arguments.facilities} facilities "
        f"x {arguments.patients} patients"
    )
    started = _output(
        *(
            "noetl",
            "run",
            PLAYBOOKS / f"pft_{arguments.variant}.yaml",
            "--detach",
            "--json",
            "--server",
            api,
        ),
        *("--set", f"facilities={arguments.facilities}", "--set", f"patients={arguments.patients}"),
        *("--set", f"api_url={fixture['api']}", "--set", f"run_nonce={nonce}"),
    )
    execution = json.loads(started.splitlines()[-1])["execution_id"]
    _noetl("run", "--attach", execution, server=api)
    console.rule("The verifier's judgement, from three witnesses")
    return subprocess.run(  # noqa: S603 - our own command
        [
            *(BIN / "pft", "verify", "--variant", arguments.variant, "--nonce", nonce),
            *("--facilities", str(arguments.facilities), "--patients", str(arguments.patients)),
            *("--execution", execution, "--dsn", target),
            *("--event-dsn", state["urls"]["postgres_reader"]),
            *("--ledger-dir", fixture["ledger"]),
        ],
        check=False,
    ).returncode


def _noetl(*arguments: object, server: str | None = None) -> None:
    where = () if server is None else ("--server", server)
    subprocess.run([BIN / "noetl", *map(str, (*arguments, *where))], check=True)  # noqa: S603 - our own command


def _output(*arguments: object) -> str:
    name, *arguments_tail = map(str, arguments)
    completed_process = subprocess.run(  # noqa: S603 - our own command
        [BIN / name, *arguments_tail], check=True, capture_output=True, text=True
    )
    return completed_process.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
