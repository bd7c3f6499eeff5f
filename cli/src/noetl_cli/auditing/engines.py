"""Who audits the shares: this process, or the executors of Spark. Both run the same code."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct

from noetl_cli import settings
from noetl_cli.auditing import reading
from noetl_cli.auditing.shares import Share
from noetl_cli.settings import AuditAccess
from noetl_contracts import codec
from noetl_contracts.step_progress import SparkProgress
from noetl_replay.auditing import Audited
from noetl_worker.settings import adopt, java_environ
from noetl_worker.spark.session import open_sparks
from noetl_worker.spark.starting import Options, parse_conf

LOCAL = "local"
SPARK = "spark"

Show = Callable[[str], None]


class SparkPlace(Struct, frozen=True, kw_only=True):
    """Which Spark audits, and with how much memory for a driver of its own."""

    master: str
    folder: Path
    conf: str = ""
    memory_bytes: int = 1024**3


async def audit_here(access: AuditAccess, shares: Sequence[Share], show: Show) -> list[Audited]:
    """Audit in this process, share after share."""
    found: list[Audited] = []
    async with reading.open_sources(access) as sources:
        for number, share in enumerate(shares, start=1):
            found += [one async for one in reading.audit_share(sources, share)]
            show(f"{number} of {len(shares)} shares, {len(found)} executions")
    return found


async def audit_on_spark(
    place: SparkPlace,
    access: AuditAccess,
    cut: Callable[[int], list[Share]],
    show: Show,
) -> list[Audited]:
    """Audit in one Spark job, a share a partition; raises what Spark's session raises.

    What opens ledger and archive is in the executors' environment, and never in the plan.
    """
    variables = settings.audit_environ(access)

    def hand_on(found: Mapping[str, str]) -> None:
        adopt({**found, **variables})

    options = Options(
        master=place.master,
        folder=place.folder,
        adopt=hand_on,
        environ=java_environ(),
        conf=parse_conf(place.conf),
        memory_bytes=place.memory_bytes,
    )
    async with open_sparks(options) as sparks:
        data = await sparks.spread(
            lambda processes: [codec.encode(share) for share in cut(processes)],
            _audit_shares,
            name="noetl audit",
            tell_progress=partial(_show_shares, show),
        )
    return [codec.decode_as(one, Audited) for one in data]


async def _show_shares(show: Show, progress: SparkProgress) -> None:
    """Show how many shares are done: each is a task of Spark's one stage."""
    for stage in progress.stages:
        show(f"{stage.tasks_done} of {stage.tasks} shares")


def _audit_shares(shares: Iterable[bytes]) -> Iterator[bytes]:
    """Audit the shares of a partition, where an executor runs."""
    access = settings.audit_access()
    for data in shares:
        found = asyncio.run(_audit(access, codec.decode_as(data, Share)))
        yield from (codec.encode(one) for one in found)


async def _audit(access: AuditAccess, share: Share) -> list[Audited]:
    async with reading.open_sources(access) as sources:
        return [one async for one in reading.audit_share(sources, share)]
