"""What an audit of many executions came to: a table for people, a file for everything else."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from noetl_cli.errors import CliError, ExitCode
from noetl_contracts import codec
from noetl_replay.audit.history_audit import AuditResult

SHOWN_MAX = 20
PARQUET = ".parquet"
JSON = ".json"

SCHEMA = pa.schema(
    [
        pa.field("execution_id", pa.int64(), nullable=False),
        pa.field("tenant_id", pa.string(), nullable=False),
        pa.field("organization_id", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("events", pa.int64(), nullable=False),
        pa.field("version", pa.int64(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("projected", pa.string(), nullable=False),
        pa.field("envelope_checksum", pa.string(), nullable=False),
        pa.field("damage", pa.list_(pa.string()), nullable=False),
        pa.field("is_ok", pa.bool_(), nullable=False),
    ]
)


class AuditSummary(Struct, frozen=True, kw_only=True):
    """An audit in figures."""

    engine: str
    executions: int
    events: int
    ok: int
    damaged: int
    projected: dict[str, int]
    sources: dict[str, int]
    seconds: float
    events_per_s: float


def summarize_audit(
    audit_results: Sequence[AuditResult], *, engine: str, seconds: float
) -> AuditSummary:
    """Count what was found."""
    events = sum(audit_result.events for audit_result in audit_results)
    ok = sum(audit_result.is_ok for audit_result in audit_results)
    return AuditSummary(
        engine=engine,
        executions=len(audit_results),
        events=events,
        ok=ok,
        damaged=len(audit_results) - ok,
        projected=dict(
            sorted(Counter(str(audit_result.projected) for audit_result in audit_results).items())
        ),
        sources=dict(
            sorted(Counter(audit_result.source for audit_result in audit_results).items())
        ),
        seconds=round(seconds, 3),
        events_per_s=round(events / seconds, 1) if seconds > 0 else 0.0,
    )


def report_lines(summary: AuditSummary, audit_results: Sequence[AuditResult]) -> list[str]:
    """Write an audit for people: figures, then each damaged execution and what is wrong with it."""
    lines = [
        f"{summary.executions} executions, {summary.events} events",
        f"  {summary.ok} ok, {summary.damaged} damaged",
        "  read models: " + _format_counts(summary.projected),
        "  read from: " + _format_counts(summary.sources),
        f"  {summary.seconds:g} s on {summary.engine}, {summary.events_per_s:g} events/s",
    ]
    damaged = [audit_result for audit_result in audit_results if not audit_result.is_ok]
    for item in damaged[:SHOWN_MAX]:
        lines += [f"{item.execution_id}: {damage}" for damage in item.damage]
    if len(damaged) > SHOWN_MAX:
        lines.append(f"and {len(damaged) - SHOWN_MAX} more: --output names all of them")
    return lines


def check_report_path(output: Path | None) -> None:
    """Refuse a file that no report can be written to, before an audit is made for it."""
    if output is None:
        return
    if output.suffix not in (PARQUET, JSON):
        raise CliError(
            f"{output} is no name of a report.",
            way_out=f"Let it end in {PARQUET} or {JSON}.",
            exit_code=ExitCode.USAGE,
        )
    if not output.parent.is_dir():
        raise CliError(f"There is no folder {output.parent}.", exit_code=ExitCode.USAGE)


def write_report(output: Path, summary: AuditSummary, audit_results: Sequence[AuditResult]) -> None:
    """Write the report: Parquet with one row an execution, or JSON with the figures before them."""
    try:
        if output.suffix == JSON:
            output.write_bytes(
                codec.encode_json(
                    {
                        "summary": summary,
                        "executions": [_audit_row(audit_result) for audit_result in audit_results],
                    }
                )
            )
            return
        about = {b"noetl.audit": codec.encode_json(summary)}
        table = pa.Table.from_pylist(
            [_audit_row(audit_result) for audit_result in audit_results], schema=SCHEMA
        )
        pq.write_table(table.replace_schema_metadata(about), output, compression="zstd")
    except OSError as failure:
        raise CliError(f"{output} cannot be written: {failure.strerror}.") from failure


def _audit_row(audit_result: AuditResult) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(audit_result)
    return {**fields, "execution_id": int(audit_result.execution_id), "is_ok": audit_result.is_ok}


def _format_counts(counted: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counted.items()) or "none"
