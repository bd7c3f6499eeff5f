"""Checks that the files of a folder of evidence agree with each other."""

from collections.abc import Iterator
from typing import Any

from noetl_contracts import codec
from noetl_contracts.errors import MalformedMessage, UnknownEventType
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger import stored_event, upcasters
from noetl_contracts.ledger.records import HistoryHead
from noetl_replay import comparison, history_replay, payload_references, rows
from noetl_replay.audit import chain, event_actors, evidence
from noetl_replay.audit.evidence import FILE_BY_ROLE, EvidenceParts, EvidenceProblem
from noetl_replay.fold import FOLD_VERSION
from noetl_replay.history_replay import HistoryReplay
from noetl_replay.state import build_empty_state

_SCOPE = ("execution_id", "tenant_id", "organization_id")
_SURFACES = frozenset(rows.SURFACES)
_SHOWN_MAX = 5

# What the fold raises on a history that no planner of this release would have written.
_FOLD_FAILURES = (LookupError, TypeError, ValueError, AttributeError)


def check_parts(parts: EvidenceParts) -> list[EvidenceProblem]:
    """List where the parts contradict each other, or themselves."""
    return [
        *_list_scope_problems(parts),
        *_list_event_problems(parts),
        *_list_replay_problems(parts),
        *_list_live_problems(parts),
        *_list_checksum_problems(parts),
        *_list_payload_problems(parts),
    ]


def _list_scope_problems(parts: EvidenceParts) -> Iterator[EvidenceProblem]:
    manifest = parts.manifest
    for role, part in (("replay", parts.replay), ("live_rows", parts.live_rows)):
        for field in _SCOPE:
            if getattr(part, field) != getattr(manifest, field):
                yield _build_problem(
                    f"{role}_scope",
                    role,
                    f"{FILE_BY_ROLE[role]} is about {field} {getattr(part, field)}, the manifest "
                    f"about {getattr(manifest, field)}",
                )
        if part.version != manifest.version:
            yield _build_problem(
                f"{role}_position",
                role,
                f"{FILE_BY_ROLE[role]} stands at version {part.version}, the manifest at "
                f"{manifest.version}",
            )


def _list_event_problems(parts: EvidenceParts) -> Iterator[EvidenceProblem]:
    manifest = parts.manifest
    for event in parts.events:
        if any(getattr(event, field) != getattr(manifest, field) for field in _SCOPE):
            yield _build_problem(
                "events_scope", "events", f"event {event.event_id} belongs to another execution"
            )
            return
    for event in parts.events:
        if event.concealed and evidence.MASK not in codec.encode_text(event):
            yield _build_problem(
                "events_concealed",
                "events",
                f"event {event.event_id} is said to be concealed, but nothing in it is",
            )
    unreadable = event_actors.find_unreadable_actor(parts.events)
    if unreadable is not None:
        yield _build_problem(
            "events_actor",
            "events",
            f"event {unreadable.event_id} names an actor that this release cannot read",
        )
    head = HistoryHead(
        execution_id=ExecutionId(manifest.execution_id),
        version=manifest.version,
        checksum=manifest.envelope_checksum,
    )
    for chain_finding in chain.examine_history(parts.events, head=head):
        yield _build_problem(f"events_{chain_finding.damage}", "events", chain_finding.message)


def _list_replay_problems(parts: EvidenceParts) -> Iterator[EvidenceProblem]:
    replay = parts.replay
    if replay.checksum_algorithm != history_replay.ALGORITHM:
        yield _build_problem(
            "replay_algorithm",
            "replay",
            f"the replay was summed with {replay.checksum_algorithm!r}",
        )
    if replay.projection != history_replay.ALL:
        yield _build_problem("replay_partial", "replay", f"only {replay.projection!r} was replayed")
    if codec.compute_checksum(replay.state) != replay.state_checksum:
        yield _build_problem(
            "replay_state", "replay", "the replayed state is not the one its checksum names"
        )
    yield from _list_surface_problems("replay", replay.surfaces, "rows")
    for surface, row_by_key in replay.surfaces.items():
        projection_checksum = replay.projection_checksums.get(surface)
        if projection_checksum is None:
            yield _build_problem(
                "replay_checksum_missing", "replay", f"the replay has no checksum of {surface}"
            )
        elif codec.compute_checksum(row_by_key) != projection_checksum:
            yield _build_problem(
                "replay_surface",
                "replay",
                f"the replayed rows of {surface} are not those their checksum names",
            )
    for surface in sorted(replay.projection_checksums.keys() - replay.surfaces.keys()):
        yield _build_problem(
            "replay_checksum_extra", "replay", f"the replay has a checksum of {surface}, not rows"
        )
    yield from _list_fold_problems(parts)


def _list_fold_problems(parts: EvidenceParts) -> Iterator[EvidenceProblem]:
    """Fold the events again and compare with what was written down."""
    replay = parts.replay
    own_release = (FOLD_VERSION, upcasters.digest_registry())
    if (replay.fold_version, replay.upcaster_digest) != own_release:
        yield _build_problem(
            "replay_release",
            "replay",
            f"this was folded by another release (fold {replay.fold_version}, upcasters "
            f"{replay.upcaster_digest[:12]}); this one folds with {own_release[0]} and "
            f"{own_release[1][:12]}: check it with the release that wrote it",
        )
        return
    replayed_history = HistoryReplay(
        build_empty_state(
            ExecutionId(replay.execution_id),
            TenantId(replay.tenant_id),
            OrganizationId(replay.organization_id),
        )
    )
    try:
        replayed_history.feed_events(stored_event.read_envelope(event) for event in parts.events)
    except (MalformedMessage, UnknownEventType) as failure:
        yield _build_problem("events_unreadable", "events", f"the events do not fold: {failure}")
        return
    except _FOLD_FAILURES as failure:
        yield _build_problem(
            "events_unfoldable",
            "events",
            f"the events do not fold behind version {replayed_history.state.version}: "
            f"{type(failure).__name__}: {failure}",
        )
        return
    replay_report = history_replay.build_replay_report(replayed_history)
    if replay_report["state_checksum"] != replay.state_checksum:
        yield _build_problem(
            "replay_not_folded",
            "replay",
            "the events fold to another state: "
            + _describe_first_change(replay_report["state"], replay.state),
        )
    if replay_report["surfaces"] != replay.surfaces:
        yield _build_problem(
            "replay_rows_not_folded",
            "replay",
            "the events fold to other rows: "
            + _describe_first_change(replay_report["surfaces"], replay.surfaces),
        )


def _list_live_problems(parts: EvidenceParts) -> Iterator[EvidenceProblem]:
    exported_rows = parts.live_rows
    if exported_rows.format_version != evidence.FORMAT_VERSION:
        yield _build_problem(
            "live_format",
            "live_rows",
            f"the live rows are of format {exported_rows.format_version}",
        )
    if not exported_rows.adapter:
        yield _build_problem(
            "live_adapter", "live_rows", "the live rows do not say which store had them"
        )
    if exported_rows.exported_at.tzinfo is None:
        yield _build_problem("live_zone", "live_rows", "the time of the live rows has no zone")
    yield from _list_surface_problems("live_rows", exported_rows.rows, "live rows")
    counts = {surface: len(surface_rows) for surface, surface_rows in exported_rows.rows.items()}
    if counts != exported_rows.row_counts:
        yield _build_problem(
            "live_counts",
            "live_rows",
            f"there are {counts} rows; {exported_rows.row_counts} were counted",
        )
    if codec.compute_checksum(exported_rows.rows) != exported_rows.rows_checksum:
        yield _build_problem(
            "live_checksum", "live_rows", "the live rows are not those their checksum names"
        )
    yield from _list_row_problems(parts)


def _list_row_problems(parts: EvidenceParts) -> Iterator[EvidenceProblem]:
    for surface, surface_rows in parts.live_rows.rows.items():
        key = rows.KEY_BY_SURFACE.get(surface)
        if key is None:
            continue
        names = [row.get(key) for row in surface_rows]
        if None in names:
            yield _build_problem("live_key", "live_rows", f"a row of {surface} has no {key}")
        elif len(set(names)) != len(names):
            yield _build_problem("live_twice", "live_rows", f"a row of {surface} is there twice")
        for field in _SCOPE:
            if any(row.get(field) != getattr(parts.manifest, field) for row in surface_rows):
                yield _build_problem(
                    "live_stranger",
                    "live_rows",
                    f"a row of {surface} belongs to another {field.removesuffix('_id')}",
                )
                break


def _list_checksum_problems(parts: EvidenceParts) -> Iterator[EvidenceProblem]:
    checksums = parts.checksums
    if checksums.algorithm != history_replay.ALGORITHM:
        yield _build_problem(
            "checksum_algorithm", "checksums", f"checksums are of {checksums.algorithm!r}"
        )
    if checksums.replayed != parts.replay.projection_checksums:
        yield _build_problem(
            "checksums_replay", "checksums", "the checksums are not those of the replayed rows"
        )
    exported_rows = parts.live_rows
    if any(rows.KEY_BY_SURFACE.get(name) is None for name in exported_rows.rows):
        return
    if any(
        rows.KEY_BY_SURFACE[name] not in row
        for name, surface_rows in exported_rows.rows.items()
        for row in surface_rows
    ):
        return
    keyed = evidence.index_rows_by_key(exported_rows.rows)
    if checksums.live != {
        surface: codec.compute_checksum(surface_rows) for surface, surface_rows in keyed.items()
    }:
        yield _build_problem(
            "checksums_live", "checksums", "the checksums are not those of the live rows"
        )
    if checksums.is_equal != (checksums.live == checksums.replayed):
        yield _build_problem(
            "checksums_verdict",
            "checksums",
            f"the checksums say that both sides are {'' if checksums.is_equal else 'not '}equal, "
            "and "
            "compare otherwise",
        )
    if keyed != parts.replay.surfaces:
        yield _build_problem(
            "parity",
            "live_rows",
            "the live rows are not what the history folds to: "
            + _describe_first_change(parts.replay.surfaces, keyed),
        )


def _list_payload_problems(parts: EvidenceParts) -> Iterator[EvidenceProblem]:
    report = parts.payloads
    if evidence.build_payload_report(report.payloads).summary != report.summary:
        yield _build_problem(
            "payloads_summary", "payloads", "the summary of payloads is not that of the report"
        )
    for payload in report.payloads:
        if payload.status != evidence.RESOLVED:
            yield _build_problem(
                "payload_unresolved", "payloads", f"payload {payload.sha256} is {payload.status}"
            )
    named_digests = {
        digest
        for event in parts.events
        for digest in payload_references.collect_references([event.event, event.payload_ref])
    }
    listed_digests = {payload_check.sha256 for payload_check in report.payloads}
    for digest in sorted(named_digests - listed_digests)[:_SHOWN_MAX]:
        yield _build_problem(
            "payload_unlisted", "payloads", f"events refer to payload {digest}, the report does not"
        )
    for digest in sorted(listed_digests - named_digests)[:_SHOWN_MAX]:
        yield _build_problem(
            "payload_unknown", "payloads", f"no event refers to payload {digest} of the report"
        )


def _list_surface_problems(
    role: str, values_by_surface: dict[str, Any], noun: str
) -> Iterator[EvidenceProblem]:
    for surface in sorted(_SURFACES - values_by_surface.keys()):
        yield _build_problem(f"{role}_surface_missing", role, f"there are no {noun} of {surface}")
    for surface in sorted(values_by_surface.keys() - _SURFACES):
        yield _build_problem(
            f"{role}_surface_unknown", role, f"there are {noun} of {surface!r}, which is no surface"
        )


def _describe_first_change(before: Any, after: Any) -> str:
    changes = comparison.compare_values(before, after)
    change_text = "; ".join(
        f"{'.'.join(change.path)} is {codec.encode_text(change.after)[:80]}, not "
        f"{codec.encode_text(change.before)[:80]}"
        for change in changes[:1]
    )
    return f"{change_text} ({len(changes)} differences)"


def _build_problem(code: str, role: str, message: str) -> EvidenceProblem:
    return EvidenceProblem(code=code, artifact=FILE_BY_ROLE[role], message=message)
