"""Whether the parts of a folder of evidence say the truth about each other."""

from collections.abc import Iterator
from typing import Any

from noetl_contracts import codec, stored, upcast
from noetl_contracts.errors import MalformedMessage, UnknownEventType
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger import Head
from noetl_replay import chain, diffing, evidence, references, replaying, rows
from noetl_replay.evidence import FILE_BY_ROLE
from noetl_replay.evidence_parts import Parts, Problem
from noetl_replay.fold import FOLD_VERSION
from noetl_replay.replaying import Replay
from noetl_replay.state import empty

_SCOPE = ("execution_id", "tenant_id", "organization_id")
_SURFACES = frozenset(rows.SURFACES)
_SHOWN_MAX = 5

# What the fold raises on a history that no planner of this release would have written.
_FOLD_FAILURES = (LookupError, TypeError, ValueError, AttributeError)


def check(parts: Parts) -> list[Problem]:
    """List where the parts contradict each other, or themselves."""
    return [
        *_scopes(parts),
        *_events(parts),
        *_replay(parts),
        *_live(parts),
        *_checksums(parts),
        *_payloads(parts),
    ]


def _scopes(parts: Parts) -> Iterator[Problem]:
    manifest = parts.manifest
    for role, part in (("replay", parts.replay), ("live_rows", parts.live_rows)):
        for field in _SCOPE:
            if getattr(part, field) != getattr(manifest, field):
                yield _problem(
                    f"{role}_scope",
                    role,
                    f"{FILE_BY_ROLE[role]} is about {field} {getattr(part, field)}, the manifest "
                    f"about {getattr(manifest, field)}",
                )
        if part.version != manifest.version:
            yield _problem(
                f"{role}_position",
                role,
                f"{FILE_BY_ROLE[role]} stands at version {part.version}, the manifest at "
                f"{manifest.version}",
            )


def _events(parts: Parts) -> Iterator[Problem]:
    manifest = parts.manifest
    for one in parts.events:
        if any(getattr(one, field) != getattr(manifest, field) for field in _SCOPE):
            yield _problem(
                "events_scope", "events", f"event {one.event_id} belongs to another execution"
            )
            return
    for one in parts.events:
        if one.concealed and evidence.MASK not in codec.text(one):
            yield _problem(
                "events_concealed",
                "events",
                f"event {one.event_id} is said to be concealed, but nothing in it is",
            )
    head = Head(
        execution_id=ExecutionId(manifest.execution_id),
        version=manifest.version,
        checksum=manifest.envelope_checksum,
    )
    for found in chain.examine(parts.events, head=head):
        yield _problem(f"events_{found.damage}", "events", found.message)


def _replay(parts: Parts) -> Iterator[Problem]:
    replay = parts.replay
    if replay.checksum_algorithm != replaying.ALGORITHM:
        yield _problem(
            "replay_algorithm",
            "replay",
            f"the replay was summed with {replay.checksum_algorithm!r}",
        )
    if replay.projection != replaying.ALL:
        yield _problem("replay_partial", "replay", f"only {replay.projection!r} was replayed")
    if codec.checksum(replay.state) != replay.state_checksum:
        yield _problem(
            "replay_state", "replay", "the replayed state is not the one its checksum names"
        )
    yield from _complete("replay", replay.surfaces, "rows")
    for surface, found in replay.surfaces.items():
        said = replay.projection_checksums.get(surface)
        if said is None:
            yield _problem(
                "replay_checksum_missing", "replay", f"the replay has no checksum of {surface}"
            )
        elif codec.checksum(found) != said:
            yield _problem(
                "replay_surface",
                "replay",
                f"the replayed rows of {surface} are not those their checksum names",
            )
    for surface in sorted(replay.projection_checksums.keys() - replay.surfaces.keys()):
        yield _problem(
            "replay_checksum_extra", "replay", f"the replay has a checksum of {surface}, not rows"
        )
    yield from _folded(parts)


def _folded(parts: Parts) -> Iterator[Problem]:
    """Fold the events again and compare with what was written down."""
    replay = parts.replay
    ours = (FOLD_VERSION, upcast.digest())
    if (replay.fold_version, replay.upcaster_digest) != ours:
        yield _problem(
            "replay_release",
            "replay",
            f"this was folded by another release (fold {replay.fold_version}, upcasters "
            f"{replay.upcaster_digest[:12]}); this one folds with {ours[0]} and {ours[1][:12]}: "
            "check it with the release that wrote it",
        )
        return
    again = Replay(
        empty(
            ExecutionId(replay.execution_id),
            TenantId(replay.tenant_id),
            OrganizationId(replay.organization_id),
        )
    )
    try:
        again.feed(stored.read(one) for one in parts.events)
    except (MalformedMessage, UnknownEventType) as failure:
        yield _problem("events_unreadable", "events", f"the events do not fold: {failure}")
        return
    except _FOLD_FAILURES as failure:
        yield _problem(
            "events_unfoldable",
            "events",
            f"the events do not fold behind version {again.state.version}: "
            f"{type(failure).__name__}: {failure}",
        )
        return
    found = replaying.report(again)
    if found["state_checksum"] != replay.state_checksum:
        yield _problem(
            "replay_not_folded",
            "replay",
            "the events fold to another state: " + _first(found["state"], replay.state),
        )
    if found["surfaces"] != replay.surfaces:
        yield _problem(
            "replay_rows_not_folded",
            "replay",
            "the events fold to other rows: " + _first(found["surfaces"], replay.surfaces),
        )


def _live(parts: Parts) -> Iterator[Problem]:
    live = parts.live_rows
    if live.format_version != evidence.FORMAT_VERSION:
        yield _problem(
            "live_format", "live_rows", f"the live rows are of format {live.format_version}"
        )
    if not live.adapter:
        yield _problem("live_adapter", "live_rows", "the live rows do not say which store had them")
    if live.exported_at.tzinfo is None:
        yield _problem("live_zone", "live_rows", "the time of the live rows has no zone")
    yield from _complete("live_rows", live.rows, "live rows")
    counts = {surface: len(found) for surface, found in live.rows.items()}
    if counts != live.row_counts:
        yield _problem(
            "live_counts", "live_rows", f"there are {counts} rows; {live.row_counts} were counted"
        )
    if codec.checksum(live.rows) != live.rows_checksum:
        yield _problem(
            "live_checksum", "live_rows", "the live rows are not those their checksum names"
        )
    yield from _rows(parts)


def _rows(parts: Parts) -> Iterator[Problem]:
    for surface, found in parts.live_rows.rows.items():
        key = rows.KEY_BY_SURFACE.get(surface)
        if key is None:
            continue
        names = [row.get(key) for row in found]
        if None in names:
            yield _problem("live_key", "live_rows", f"a row of {surface} has no {key}")
        elif len(set(names)) != len(names):
            yield _problem("live_twice", "live_rows", f"a row of {surface} is there twice")
        for field in _SCOPE:
            if any(row.get(field) != getattr(parts.manifest, field) for row in found):
                yield _problem(
                    "live_stranger",
                    "live_rows",
                    f"a row of {surface} belongs to another {field.removesuffix('_id')}",
                )
                break


def _checksums(parts: Parts) -> Iterator[Problem]:
    said = parts.checksums
    if said.algorithm != replaying.ALGORITHM:
        yield _problem("checksum_algorithm", "checksums", f"checksums are of {said.algorithm!r}")
    if said.replayed != parts.replay.projection_checksums:
        yield _problem(
            "checksums_replay", "checksums", "the checksums are not those of the replayed rows"
        )
    live = parts.live_rows
    if any(rows.KEY_BY_SURFACE.get(name) is None for name in live.rows):
        return
    if any(
        rows.KEY_BY_SURFACE[name] not in row for name, found in live.rows.items() for row in found
    ):
        return
    keyed = evidence.keyed(live.rows)
    if said.live != {surface: codec.checksum(found) for surface, found in keyed.items()}:
        yield _problem(
            "checksums_live", "checksums", "the checksums are not those of the live rows"
        )
    if said.is_equal != (said.live == said.replayed):
        yield _problem(
            "checksums_verdict",
            "checksums",
            f"the checksums say that both sides are {'' if said.is_equal else 'not '}equal, and "
            "compare otherwise",
        )
    if keyed != parts.replay.surfaces:
        yield _problem(
            "parity",
            "live_rows",
            "the live rows are not what the history folds to: "
            + _first(parts.replay.surfaces, keyed),
        )


def _payloads(parts: Parts) -> Iterator[Problem]:
    report = parts.payloads
    if evidence.summarize(report.payloads).summary != report.summary:
        yield _problem(
            "payloads_summary", "payloads", "the summary of payloads is not that of the report"
        )
    for one in report.payloads:
        if one.status != evidence.RESOLVED:
            yield _problem(
                "payload_unresolved", "payloads", f"payload {one.sha256} is {one.status}"
            )
    named = {
        digest
        for event in parts.events
        for digest in references.found_in([event.event, event.payload_ref])
    }
    listed = {one.sha256 for one in report.payloads}
    for digest in sorted(named - listed)[:_SHOWN_MAX]:
        yield _problem(
            "payload_unlisted", "payloads", f"events refer to payload {digest}, the report does not"
        )
    for digest in sorted(listed - named)[:_SHOWN_MAX]:
        yield _problem(
            "payload_unknown", "payloads", f"no event refers to payload {digest} of the report"
        )


def _complete(role: str, found: dict[str, Any], what: str) -> Iterator[Problem]:
    for surface in sorted(_SURFACES - found.keys()):
        yield _problem(f"{role}_surface_missing", role, f"there are no {what} of {surface}")
    for surface in sorted(found.keys() - _SURFACES):
        yield _problem(
            f"{role}_surface_unknown", role, f"there are {what} of {surface!r}, which is no surface"
        )


def _first(before: Any, after: Any) -> str:
    changes = diffing.compare(before, after)
    shown = "; ".join(
        f"{'.'.join(change.path)} is {codec.text(change.after)[:80]}, not "
        f"{codec.text(change.before)[:80]}"
        for change in changes[:1]
    )
    return f"{shown} ({len(changes)} differences)"


def _problem(code: str, role: str, message: str) -> Problem:
    return Problem(code=code, artifact=FILE_BY_ROLE[role], message=message)
