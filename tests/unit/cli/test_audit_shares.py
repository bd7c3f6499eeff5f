"""What an audit covers, and how it is cut."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from noetl_cli.audit import report, shares
from noetl_cli.audit.shares import AuditShare, ExecutionAudit
from noetl_cli.errors import CliError
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger.archive_format import ArchivedHistory, ArchiveManifest, ManifestUnit
from noetl_contracts.ledger.records import HistoryHead

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TENANT, ORGANIZATION = TenantId("acme"), OrganizationId("west")
WHOLE = AuditShare(tenant_id=TENANT, organization_id=ORGANIZATION, audits=[], reads_live=False)


def a_head(number: int, version: int = 5) -> HistoryHead:
    return HistoryHead(execution_id=ExecutionId(str(number)), version=version, checksum="c")


def a_manifest(manifest_id: str, *kept: tuple[int, int, int]) -> ArchiveManifest:
    return ArchiveManifest(
        unit=ManifestUnit(
            manifest_id=manifest_id,
            tenant_id=TENANT,
            organization_id=ORGANIZATION,
            month="2026-01",
            planned_at=NOON,
            fold_version=1,
            upcaster_digest="u",
        ),
        events=1,
        histories=[
            ArchivedHistory(
                execution_id=ExecutionId(str(number)),
                first_version=first,
                last_version=last,
                previous="",
                checksum=f"c{last}",
                began_at=NOON,
                ended_at=NOON,
                parts=[0],
            )
            for number, first, last in kept
        ],
        parts=[],
    )


def test_ledger_and_archive_are_audited_together() -> None:
    manifests = [a_manifest("b", (2, 4, 6)), a_manifest("a", (2, 1, 3), (1, 1, 9))]
    audits = shares.plan_audits([a_head(10), a_head(2, 8)], manifests)
    assert [audit.execution_id for audit in audits] == ["1", "2", "10"]
    assert [audit.manifests for audit in audits] == [("a",), ("a", "b"), ()]
    assert [audit.event_count for audit in audits] == [9, 8, 5]
    assert audits[1].archived == HistoryHead(
        execution_id=ExecutionId("2"), version=6, checksum="c6"
    )


@pytest.mark.parametrize("processes", [1, 3, 100])
def test_each_execution_is_in_one_share(processes: int) -> None:
    audits = [
        ExecutionAudit(execution_id=ExecutionId(str(number)), head=a_head(number, number))
        for number in range(200)
    ]
    cut = shares.split_shares(audits, WHOLE, processes=processes)
    assert [audit for share in cut for audit in share.audits] == audits
    assert all(share.audits and not share.reads_live for share in cut)
    assert len(cut) <= processes * shares.SHARES_PER_PROCESS + 1
    assert len(shares.split_shares([], WHOLE, processes=processes)) == 0


@pytest.mark.parametrize("name", ["report.csv", "report", "no/such/folder/report.json"])
def test_a_report_that_cannot_be_written_is_refused_before_the_audit(name: str) -> None:
    with pytest.raises(CliError):
        report.check_report_path(Path(name))
