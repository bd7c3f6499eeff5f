"""`noetl audit`: is the ledger as it was written, and what was done to it if it is not."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from noetl_cli import client, render, settings
from noetl_cli.client import Client
from noetl_cli.commands import audit_run
from noetl_cli.commands.options import AsJson, Organization, Server, Tenant
from noetl_cli.failures import CliError, ExitCode
from noetl_cli.spinner import show_spinner
from noetl_contracts import codec
from noetl_contracts.ledger import Head

app = typer.Typer(no_args_is_help=True, help="Check that histories are as they were written.")

app.command("run")(audit_run.run)

HEADS_BYTES_MAX = 1024 * 1024 * 1024


class Heads(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where every history of a tenant ended when the file was written."""

    tenant_id: str
    organization_id: str
    heads: list[Head]


@app.command("heads")
def heads(
    *,
    output: Annotated[Path, typer.Option("--output", help="The file to write.")],
    tenant: Tenant = None,
    organization: Organization = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Write down where every history ends; keep the file where no ledger's owner can write."""
    place = settings.place(tenant, organization, environ=settings.environment())
    with client.open_client(server) as planner:
        found = Heads(**place, heads=list(_list_heads(planner, place)))
    try:
        output.write_bytes(codec.encode(found))
    except OSError as failure:
        raise CliError(f"{output} cannot be written: {failure.strerror}.") from failure
    if as_json:
        render.json_line({"output": str(output), "histories": len(found.heads)})
    else:
        render.line(f"{output}: the ends of {len(found.heads)} histories.")


@app.command("verify")
def verify(
    execution_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Executions (default: all).")
    ] = None,
    *,
    exported: Annotated[
        Path | None, typer.Option("--heads", help="A file of `noetl audit heads`.")
    ] = None,
    tenant: Tenant = None,
    organization: Organization = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Follow the chain of checksums, and name every event that was changed, removed or moved."""
    place = settings.place(tenant, organization, environ=settings.environment())
    kept = {} if exported is None else _read_heads(exported, place)
    with client.open_client(server) as planner:
        chosen = execution_ids or _all(planner, place, kept)
        total = bad = 0
        for execution_id in chosen:
            with show_spinner(f"Following the history of {execution_id}", is_quiet=as_json):
                verdict = _verify(planner, place, execution_id, kept.get(execution_id))
            total, bad = total + 1, bad + (not verdict["is_whole"])
            _show(verdict, as_json=as_json)
    if not as_json:
        render.line(f"{total} histories, {bad} of them not as they were written.")
    if bad:
        raise typer.Exit(ExitCode.FAILED)


def _verify(planner: Client, place: dict[str, str], execution_id: str, head: Head | None) -> Any:
    known = {} if head is None else {"version": head.version, "checksum": head.checksum}
    return planner.get(f"/api/audit/executions/{client.escaped(execution_id)}", **place, **known)


def _show(verdict: Any, *, as_json: bool) -> None:
    if as_json:
        render.json_line(verdict)
        return
    if verdict.get("dropped"):
        render.note(verdict["dropped"])
    for found in verdict["findings"]:
        render.line(f"{verdict['execution_id']}: {found['damage']}: {found['message']}")


def _all(planner: Client, place: dict[str, str], kept: dict[str, Head]) -> Iterator[str]:
    """Name every history that is there, then those of the exported heads that are not."""
    missing = dict(kept)
    for head in _list_heads(planner, place):
        missing.pop(head.execution_id, None)
        yield head.execution_id
    yield from missing


def _list_heads(planner: Client, place: dict[str, str]) -> Iterator[Head]:
    after: str | None = None
    while True:
        page = planner.get("/api/audit/heads", **place, after=after)
        try:
            found = [codec.convert(one, Head) for one in page["heads"]]
        except msgspec.ValidationError as failure:
            raise client.no_planner(f"The answer has another shape ({failure})") from failure
        yield from found
        after = page["next_after"]
        if after is None:
            return


def _read_heads(path: Path, place: dict[str, str]) -> dict[str, Head]:
    try:
        if path.stat().st_size > HEADS_BYTES_MAX:
            raise CliError(f"{path} is too large to be a file of heads.")
        found = codec.decode_as(path.read_bytes(), Heads)
    except OSError as failure:
        raise CliError(
            f"{path} cannot be read: {failure.strerror}.",
            way_out="Write it with: noetl audit heads --output FILE",
            exit_code=ExitCode.USAGE,
        ) from failure
    except (msgspec.DecodeError, RecursionError) as failure:
        raise CliError(
            f"{path} is no file of heads: {failure}",
            way_out="Write it with: noetl audit heads --output FILE",
            exit_code=ExitCode.USAGE,
        ) from failure
    if codec.builtins(found) | place != codec.builtins(found):
        raise CliError(
            f"{path} is about tenant {found.tenant_id!r}, organization {found.organization_id!r}.",
            way_out="Name them with --tenant and --organization.",
            exit_code=ExitCode.USAGE,
        )
    return {head.execution_id: head for head in found.heads}
