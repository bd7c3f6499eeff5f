"""Subjects and ids that name a worker."""

import pytest

from noetl_contracts import subjects
from noetl_contracts.errors import SubjectError
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.subjects import Reporter, ShardSubject

# Tenants may be named like a part of the grammar.
OWNERS = [(TenantId(a), OrganizationId(b)) for a in ("acme", "worker") for b in ("ops", "worker")]


@pytest.mark.parametrize("owner", OWNERS)
def test_a_report_names_its_owner_and_its_worker(owner: tuple[TenantId, OrganizationId]) -> None:
    reporter = Reporter("gpu", "gpu-1")
    subject = subjects.build_report_subject(3, *owner, reporter)
    assert subjects.parse_shard_subject(subject) == ShardSubject(3, *owner, reporter)
    report_subject = subjects.build_report_subject(3, *owner, reporter, is_own=True)
    assert report_subject.startswith("noetl.ingest.3-own.")
    assert subjects.parse_shard_subject(report_subject) == ShardSubject(
        3, *owner, reporter, is_own=True
    )
    plain = subjects.build_ingest_subject(3, *owner)
    assert subjects.parse_shard_subject(plain) == ShardSubject(3, *owner, None)


@pytest.mark.parametrize(
    "subject",
    [
        "noetl.ingest.0.a.b.worker",
        "noetl.ingest.0.a.b.worker.pool",
        "noetl.ingest.0.a.b.worker.pool.id.more",
        "noetl.ingest.0.a.b.service.pool.id",
        "noetl.ingest.0.worker.pool.id",
        "noetl.ingest.-own.a.b",
        "noetl.ingest.0-own-own.a.b",
        "noetl.events.0-own.a.b",
        "noetl.events.0.a.b.worker.pool.id",
    ],
)
def test_another_subject_names_nobody(subject: str) -> None:
    with pytest.raises(SubjectError):
        subjects.parse_shard_subject(subject)


@pytest.mark.parametrize(
    ("identity", "process", "worker_id"),
    [
        ("worker-1", "worker-1", "worker-1"),
        ("pool", "worker-host-7", "pool.worker-host-7"),
        ("pool", "pool.2", "pool.2"),
        ("worker", "worker-1", "worker.worker-1"),
    ],
)
def test_a_workers_id_begins_with_its_identity(identity: str, process: str, worker_id: str) -> None:
    assert subjects.build_worker_id(identity, process) == worker_id
    assert subjects.find_identity(worker_id) == identity


@pytest.mark.parametrize("worker_id", ["a b", ".a", "*", ">.a", "", "x" * 65])
def test_an_id_that_begins_with_no_token_has_a_digest_for_identity(worker_id: str) -> None:
    assert len(subjects.find_identity(worker_id)) == 32
