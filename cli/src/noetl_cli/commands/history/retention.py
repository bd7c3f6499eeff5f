"""`noetl retention`: how long histories stay in the ledger, who holds them, and their way out."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated, Any

import typer

from noetl_chassis.identity import mint_token
from noetl_chassis.seals.credential_seal import KeyUnusable
from noetl_cli import terminal_output
from noetl_cli.commands.options import AsJson, Directory, Organization, Server, Tenant
from noetl_cli.errors import CliError, ExitCode, StackError
from noetl_cli.planner import client
from noetl_cli.stack import administered_work, stores
from noetl_cli.stack.stores import Dsn, KeyFile, StoreAccess, Url
from noetl_cli.terminal_output import show_spinner
from noetl_contracts.errors import NoetlError
from noetl_replay.fold import FOLD_VERSION
from noetl_storage.archive.archivist import (
    ROLE,
    Archivist,
    RetentionPlan,
    RetentionTerms,
    UnitProgress,
)
from noetl_storage.ports.payload_ports import Owner
from noetl_storage.ports.retention_ports import ArchiveUnit, RetentionAction, UnitStatus
from noetl_storage.postgres.database import Database
from noetl_storage.postgres.ledger.audit import PostgresLedgerAudit
from noetl_storage.postgres.ledger.instances import PostgresInstances
from noetl_storage.postgres.ledger.retention import PostgresRetention

STATEMENT_S = 600.0
# Another run may begin when this one has been silent for so long.
LEASE_S = 60.0

app = typer.Typer(no_args_is_help=True, help="Say how long histories stay, and let them leave.")

Execution = Annotated[
    str | None, typer.Argument(metavar="[ID]", help="The execution (with --all: everything).")
]
Everything = Annotated[bool, typer.Option("--all", help="Everything of the organization.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; it is kept for good.")]
Who = Annotated[
    str | None, typer.Option("--who", help="Who says so, if nobody signs in (default: your login).")
]


@app.command("hold")
def hold_history(
    execution_id: Execution = None,
    *,
    reason: Reason,
    everything: Everything = False,
    who: Who = None,
    tenant: Tenant = None,
    organization: Organization = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Keep a history in the ledger; a hold overrides every retention policy."""
    body = _build_hold(execution_id, everything=everything, reason=reason, who=who)
    with client.open_client(server, tenant=tenant, organization=organization) as planner:
        hold = planner.post("/api/retention/holds", {**body, **client.get_owner(planner)})
    _show_hold(hold, "is held", as_json=as_json)


@app.command("release")
def release_hold(
    execution_id: Execution = None,
    *,
    reason: Reason,
    everything: Everything = False,
    who: Who = None,
    tenant: Tenant = None,
    organization: Organization = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """End a hold; its record stays."""
    body = _build_hold(execution_id, everything=everything, reason=reason, who=who)
    with client.open_client(server, tenant=tenant, organization=organization) as planner:
        place = client.get_owner(planner)
        hold = planner.post("/api/retention/holds/release", {**body, **place})
    _show_hold(hold, "is held no longer", as_json=as_json)


@app.command("list")
def list_holds(
    *,
    released: Annotated[
        bool, typer.Option("--released", help="Also holds that have ended.")
    ] = False,
    tenant: Tenant = None,
    organization: Organization = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """List the holds, and what has left or is leaving."""
    with client.open_client(server, tenant=tenant, organization=organization) as planner:
        place = client.get_owner(planner)
        holds = planner.get("/api/retention/holds", **place, released=released)["holds"]
        units = planner.get("/api/retention/units", **place)["units"]
    if as_json:
        terminal_output.print_json({"holds": holds, "units": units})
        return
    terminal_output.print_rows(
        ("HOLD", "EXECUTION", "SINCE", "BY", "REASON", "RELEASED"),
        [
            (
                str(hold["hold_id"]),
                hold["execution_id"] or "everything",
                hold["held_at"][:16],
                hold["held_by"],
                hold["reason"],
                (hold["released_at"] or "")[:16],
            )
            for hold in holds
        ],
        nothing="No holds.",
    )
    terminal_output.print_rows(
        ("MANIFEST", "MONTH", "ACTION", "STATUS", "HISTORIES", "EVENTS", "PARTITION"),
        [
            (
                unit["manifest_id"],
                unit["month"],
                unit["action"],
                unit["status"],
                str(unit["histories"]),
                str(unit["events"]),
                unit["partition_name"],
            )
            for unit in units
        ],
        nothing="Nothing has left the ledger.",
    )


@app.command("policy")
def show_or_set_policy(
    *,
    keep_days: Annotated[
        int | None, typer.Option("--keep-days", min=0, max=36_500, help="Days after the end.")
    ] = None,
    action: Annotated[
        RetentionAction | None, typer.Option("--action", help="What becomes of a history then.")
    ] = None,
    who: Who = None,
    tenant: Tenant = None,
    organization: Organization = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Show how long histories stay; with both options, say so."""
    if (keep_days is None) != (action is None):
        raise CliError(
            "A policy is --keep-days and --action together.",
            way_out="As: noetl retention policy --keep-days 30 --action archive",
            exit_code=ExitCode.USAGE,
        )
    with client.open_client(server, tenant=tenant, organization=organization) as planner:
        place = client.get_owner(planner)
        if keep_days is not None:
            who = who or administered_work.get_login_name()
            body = {"keep_days": keep_days, "action": action, "who": who}
            policy = planner.put("/api/retention/policy", {**place, **body})["policy"]
        else:
            policy = planner.get("/api/retention/policy", **place)["policy"]
    if as_json:
        terminal_output.print_json(policy)
    elif policy is None:
        terminal_output.print_line("No policy of its own: what the deployment says holds.")
    else:
        terminal_output.print_line(
            f"{policy['keep_days']} days after its end: {policy['action']} "
            f"(set by {policy['set_by']})."
        )


@app.command("run")
def run_retention(  # noqa: PLR0913 - one parameter for each option of the command line
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be done.")
    ] = False,
    keep_days: Annotated[
        int | None,
        typer.Option("--keep-days", min=0, help="For owners without a policy (else: skip them)."),
    ] = None,
    action: Annotated[
        RetentionAction, typer.Option("--action", help="For owners without a policy.")
    ] = RetentionAction.ARCHIVE,
    rows: Annotated[
        bool, typer.Option("--rows", help="Delete rows where a partition has to stay.")
    ] = False,
    postgres: Dsn = None,
    payloads: Url = None,
    keys: KeyFile = "",
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Archive or drop what is due, read it back, and take it out of the ledger."""
    terms = RetentionTerms(keep_days=keep_days, action=action, can_delete=rows)
    place = stores.find_stores(directory, dsn=postgres, url=payloads, key_file=keys)
    try:
        asyncio.run(_run_archivist(place, terms, is_dry_run=dry_run, as_json=as_json))
    except KeyUnusable as failure:
        raise stores.build_unusable_keys_error(failure) from failure
    except NoetlError as failure:
        raise StackError(
            f"The histories stay where they are: {failure}",
            way_out="Nothing is lost. Correct this and run the command again: it continues there.",
        ) from failure


async def _run_archivist(
    place: StoreAccess, terms: RetentionTerms, *, is_dry_run: bool, as_json: bool
) -> None:
    async with stores.open_stores(place, statement_s=STATEMENT_S) as (database, payloads):
        who = f"{administered_work.get_login_name()}/{mint_token()[:8]}"
        archivist = Archivist(
            retention=PostgresRetention(database),
            audit=PostgresLedgerAudit(database),
            store=payloads,
            terms=terms,
            fold_version=FOLD_VERSION,
            who=who,
        )
        if is_dry_run:
            with show_spinner("Looking for what is due", is_quiet=as_json):
                plans, units = await archivist.preview_plans(), await archivist.list_open_units()
            _show_plans(plans, units, as_json=as_json)
            return
        lead = PostgresInstances(database).claim_role
        if not await lead(role=ROLE, owner=who, lease_s=LEASE_S):
            raise CliError(
                "Another run is under way.", way_out="Wait for its end; see: noetl retention list"
            )
        reports: list[UnitProgress] = []

        def tell_progress(progress: UnitProgress) -> None:
            reports.append(progress)
            if not as_json:
                _print_progress(progress)

        try:
            async with _record_run(database, archivist, reports):
                await archivist.archive_all_due(tell_progress)
        finally:
            await lead(role=ROLE, owner=who, lease_s=0.001)
        _show_progress(reports, await archivist.list_open_units(), as_json=as_json)


@asynccontextmanager
async def _record_run(
    database: Database, archivist: Archivist, reports: Sequence[UnitProgress]
) -> AsyncIterator[None]:
    """Record a run with every owner whose histories it may take out, and how many it took."""
    plans = await archivist.preview_plans()
    open_units = await archivist.list_open_units()
    owners = {plan.owner for plan in plans if plan.due} | set(map(_get_unit_owner, open_units))
    async with AsyncExitStack() as stack:
        details_by_owner = {
            owner: await stack.enter_async_context(
                administered_work.record_work(
                    database,
                    administered_work.RETENTION,
                    f"{owner.tenant_id}/{owner.organization_id}",
                    owner=owner,
                )
            )
            for owner in owners
        }
        yield
        for owner, details in details_by_owner.items():
            done = [it for it in reports if _get_unit_owner(it.unit) == owner]
            details["histories"] = sum(progress.histories for progress in done)
            details["events"] = sum(progress.events for progress in done)


def _get_unit_owner(unit: ArchiveUnit) -> Owner:
    return Owner(tenant_id=unit.tenant_id, organization_id=unit.organization_id)


def _print_progress(progress: UnitProgress) -> None:
    unit = progress.unit
    terminal_output.print_note(
        f"manifest {unit.manifest_id}: {progress.status} ({unit.histories} histories, "
        f"{unit.events} events of {unit.month})"
    )


def _show_plans(
    plans: Sequence[RetentionPlan], units: Sequence[ArchiveUnit], *, as_json: bool
) -> None:
    if as_json:
        terminal_output.print_json({"plans": plans, "units": units})
        return
    rows = []
    for plan in plans:
        owner, own = f"{plan.owner.tenant_id}/{plan.owner.organization_id}", plan.policy
        words = "no policy" if own is None else f"{own.action} after {own.keep_days} d"
        rows += [
            (owner, words, due.month, str(due.histories), str(due.events)) for due in plan.due
        ] or [(owner, words, "-", "0", "0")]
    terminal_output.print_rows(
        ("OWNER", "POLICY", "MONTH", "HISTORIES", "EVENTS"), rows, nothing="There is no history."
    )
    if units:
        terminal_output.print_line(f"{len(units)} units have begun and would go on.")


def _show_progress(
    reports: Sequence[UnitProgress], waiting: Sequence[ArchiveUnit], *, as_json: bool
) -> None:
    last = {progress.unit.manifest_id: progress for progress in reports}
    if as_json:
        terminal_output.print_json({"done": list(last.values()), "waiting": waiting})
        return
    rows = [
        (
            manifest_id,
            f"{progress.unit.tenant_id}/{progress.unit.organization_id}",
            progress.unit.month,
            progress.unit.action,
            progress.status,
            str(progress.unit.histories),
            str(progress.unit.events),
        )
        for manifest_id, progress in last.items()
    ]
    terminal_output.print_rows(
        ("MANIFEST", "OWNER", "MONTH", "ACTION", "STATUS", "HISTORIES", "EVENTS"),
        rows,
        nothing="Nothing was due.",
    )
    verified = [unit for unit in waiting if unit.status is UnitStatus.VERIFIED]
    if verified:
        terminal_output.print_line(
            f"{len(verified)} units are archived and wait for the rest of their month; --rows "
            "takes them out of the ledger at once, but for what is held."
        )


def _show_hold(hold: Any, words: str, *, as_json: bool) -> None:
    if as_json:
        terminal_output.print_json(hold)
        return
    target = "Everything" if hold["execution_id"] is None else f"Execution {hold['execution_id']}"
    terminal_output.print_line(f"{target} {words} (hold {hold['hold_id']}).")


def _build_hold(
    execution_id: str | None, *, everything: bool, reason: str, who: str | None
) -> dict[str, Any]:
    if (execution_id is None) != everything:
        raise CliError(
            "Name an execution, or say --all.",
            way_out="List executions with: noetl ls",
            exit_code=ExitCode.USAGE,
        )
    who = who or administered_work.get_login_name()
    return {"execution_id": execution_id, "reason": reason, "who": who}
