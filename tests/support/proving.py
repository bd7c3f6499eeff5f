"""Folders of evidence made of a history, for tests to damage."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from msgspec import Struct
from tests.support.builders import NOON, History, a_cursor_loop

from noetl_contracts import codec, stored
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger import Head
from noetl_replay import evidence, references, replaying
from noetl_replay.evidence import FILE_BY_ROLE, PayloadCheck, Scope, Step
from noetl_replay.replaying import Replay
from noetl_replay.state import empty

Files = dict[str, bytes]


def replayed(history: History) -> dict[str, Any]:
    """What a history comes to, as plain values."""
    first = history.envelopes[0]
    replay = Replay(empty(first.execution_id, first.tenant_id, first.organization_id))
    replay.feed(history.envelopes)
    report: dict[str, Any] = codec.decode(codec.encode(replaying.report(replay)))
    return report


def a_folder(history: History | None = None) -> Files:
    """The evidence of a history whose live rows are what they should be."""
    history = history or a_cursor_loop()
    events = [stored.of(one) for one in history.envelopes]
    last, report = events[-1], replayed(history)
    scope = Scope(
        execution_id=last.execution_id,
        tenant_id=last.tenant_id,
        organization_id=last.organization_id,
    )
    live = evidence.live_rows(
        {surface: list(found.values()) for surface, found in report["surfaces"].items()},
        scope=scope,
        adapter="memory",
        version=last.stream_version,
        exported_at=NOON,
    )
    found = references.found_in([one.event for one in events])
    payloads = evidence.summarize(
        [
            PayloadCheck(sha256=digest, uri=one["uri"], status=evidence.RESOLVED)
            for digest, one in found.items()
        ]
    )
    steps = [
        Step(name=name, started_at=NOON, ended_at=NOON + timedelta(seconds=1))
        for name in evidence.STEPS
    ]
    head = Head(
        execution_id=ExecutionId(last.execution_id),
        version=last.stream_version,
        checksum=last.envelope_checksum,
    )
    files = {
        "events": evidence.lines(events),
        "replay": codec.encode(report),
        "live_rows": codec.encode(live),
        "checksums": codec.encode(evidence.checksums(live, report)),
        "payloads": codec.encode(payloads),
        "manifest": codec.encode(
            evidence.manifest(scope=scope, head=head, producer="test", created_at=NOON, steps=steps)
        ),
    }
    return indexed({FILE_BY_ROLE[role]: data for role, data in files.items()})


def indexed(files: Files) -> Files:
    """The folder with an index that fits its files."""
    kept = {path: data for path, data in files.items() if path != evidence.INDEX}
    return {**kept, evidence.INDEX: codec.encode(evidence.index(kept))}


def edited(role: str, change: Callable[[Any], Any]) -> Callable[[Files], Files]:
    """Change the JSON of one part and hide it from the index."""

    def damage(files: Files) -> Files:
        path = FILE_BY_ROLE[role]
        body = codec.decode(files[path])
        changed = change(body)
        return indexed(
            {**files, path: codec.encode(changed if isinstance(changed, Struct) else body)}
        )

    return damage


def reindexed(change: Callable[[Any], Any]) -> Callable[[Files], Files]:
    """Change the index itself."""

    def damage(files: Files) -> Files:
        body = codec.decode(files[evidence.INDEX])
        change(body)
        return {**files, evidence.INDEX: codec.encode(body)}

    return damage


def relined(change: Callable[[list[dict[str, Any]]], Any]) -> Callable[[Files], Files]:
    """Change the events and hide it from the index."""

    def damage(files: Files) -> Files:
        path = FILE_BY_ROLE["events"]
        body = [codec.decode(line) for line in files[path].splitlines()]
        change(body)
        lines = b"".join(codec.encode(line) + b"\n" for line in body)
        return indexed({**files, path: lines})

    return damage


def replaced(path: str, data: bytes) -> Callable[[Files], Files]:
    """Put other bytes in the place of a file, and hide it from the index."""
    return lambda files: indexed({**files, path: data})
