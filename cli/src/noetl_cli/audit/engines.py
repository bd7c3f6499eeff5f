"""Who audits the shares: this process, or the executors of Spark. Both run the same code."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct

from noetl_cli import settings
from noetl_cli.audit import audit_sources
from noetl_cli.audit.shares import AuditShare
from noetl_cli.settings import AuditAccess
from noetl_contracts import codec
from noetl_contracts.commands.task_metrics import SparkProgress
from noetl_replay.audit.history_audit import AuditResult
from noetl_worker.executor_environ import build_told_entry
from noetl_worker.settings import read_java_environ, set_variables
from noetl_worker.spark.session import open_spark_session
from noetl_worker.spark.session_options import SessionOptions, parse_conf

LOCAL = "local"
SPARK = "spark"

Show = Callable[[str], None]


class SparkTarget(Struct, frozen=True, kw_only=True):
    """Which Spark audits, and with how much memory for a driver of its own."""

    master: str
    folder: Path
    conf: str = ""
    memory_bytes: int = 1024**3


async def audit_locally(
    access: AuditAccess, shares: Sequence[AuditShare], show: Show
) -> list[AuditResult]:
    """Audit in this process, share after share."""
    audit_results: list[AuditResult] = []
    async with audit_sources.open_sources(access) as sources:
        for number, share in enumerate(shares, start=1):
            audit_results += [item async for item in audit_sources.audit_share(sources, share)]
            show(f"{number} of {len(shares)} shares, {len(audit_results)} executions")
    return audit_results


async def audit_on_spark(
    place: SparkTarget,
    access: AuditAccess,
    cut: Callable[[int], list[AuditShare]],
    show: Show,
) -> list[AuditResult]:
    """Audit in one Spark job, a share a partition; raises what Spark's session raises.

    What opens ledger and archive is in the executors' environment, and never in the plan.
    """
    variables = settings.build_audit_environ(access)

    def adopt_variables(session_variables: Mapping[str, str]) -> None:
        set_variables({**session_variables, **variables})

    options = SessionOptions(
        master=place.master,
        folder=place.folder,
        adopt=adopt_variables,
        environ=read_java_environ(),
        conf=parse_conf(place.conf),
        memory_bytes=place.memory_bytes,
    )
    async with open_spark_session(options) as spark_session:
        data = await spark_session.spread_shares(
            lambda processes: [codec.encode_json(share) for share in cut(processes)],
            build_told_entry(_audit_partition, master=place.master, variables=variables),
            name="noetl audit",
            tell_progress=partial(_show_shares_done, show),
        )
    return [codec.decode_as(item, AuditResult) for item in data]


async def _show_shares_done(show: Show, progress: SparkProgress) -> None:
    """Show how many shares are done: each is a task of Spark's one stage."""
    for stage in progress.stages:
        show(f"{stage.tasks_done} of {stage.tasks} shares")


def _audit_partition(shares: Iterable[bytes]) -> Iterator[bytes]:
    """Audit the shares of a partition, where an executor runs."""
    access = settings.read_audit_access()
    for data in shares:
        share_audit = asyncio.run(_audit_one_share(access, codec.decode_as(data, AuditShare)))
        yield from (codec.encode_json(item) for item in share_audit)


async def _audit_one_share(access: AuditAccess, share: AuditShare) -> list[AuditResult]:
    async with audit_sources.open_sources(access) as sources:
        return [item async for item in audit_sources.audit_share(sources, share)]
