"""What a run in this process was at a position, folded from its kept history."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from noetl_cli.errors import CliError, ExitCode
from noetl_cli.local import history
from noetl_contracts import codec
from noetl_contracts.errors import NoetlError
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger import stored_event
from noetl_contracts.ledger.envelope import Envelope
from noetl_replay import comparison
from noetl_replay.history_replay import ALL, HistoryReplay, build_replay_report
from noetl_replay.state import build_empty_state


def replay_state(
    file: Path, *, at: int | None, event: str | None, time: str | None, projection: str
) -> dict[str, Any]:
    """Fold a history up to a position, an event or a time, as `/api/replay/state` answers."""
    events = _read_events(file)
    until = _resolve_position(events, at=at, event=event, time=time)
    replay = _replay_events(events, until)
    return {
        **build_replay_report(replay, projection=projection),
        "head_version": len(events),
        "events_folded": replay.events,
    }


def diff_states(file: Path, *, before: int, after: int | None, projection: str) -> dict[str, Any]:
    """Compare two positions, as `/api/replay/diff` answers; the later one is the end by default."""
    events = _read_events(file)
    positions = [
        _resolve_position(events, at=position, event=None, time=None)
        for position in (before, after)
    ]
    item, other = (
        build_replay_report(_replay_events(events, until))["surfaces"] for until in positions
    )
    if projection != ALL:
        item, other = {projection: item[projection]}, {projection: other[projection]}
    changes = comparison.compare_values(item, other)
    return {
        "execution_id": file.stem,
        "before": positions[0],
        "after": positions[1],
        "is_live": False,
        "is_equal": not changes,
        "changes": changes,
        "tree": comparison.render_change_tree(changes),
    }


def _read_events(file: Path) -> list[Envelope]:
    try:
        envelopes = [
            stored_event.read_envelope(codec.convert_value(item, stored_event.StoredEvent))
            for item in history.read_stored(file)
        ]
    except (NoetlError, msgspec.ValidationError) as error:
        raise CliError(f"{file} holds an event that cannot be read: {error}") from error
    if not envelopes:
        raise CliError(f"{file} holds no event.", way_out="Run the playbook again.")
    return envelopes


def _replay_events(events: list[Envelope], until: int) -> HistoryReplay:
    first = events[0]
    replay = HistoryReplay(
        build_empty_state(
            ExecutionId(first.execution_id),
            TenantId(first.tenant_id),
            OrganizationId(first.organization_id),
        )
    )
    replay.feed_events(events[:until])
    return replay


def _resolve_position(
    events: list[Envelope], *, at: int | None, event: str | None, time: str | None
) -> int:
    """Resolve what was asked for, at most one of the three; raises `CliError`."""
    if sum(item is not None for item in (at, event, time)) > 1:
        raise _build_bad_position_error(
            "The position is given more than once.", "--at, --event or --time"
        )
    if at is not None and not 1 <= at <= len(events):
        raise _build_bad_position_error(
            f"There is no position {at}.", f"Its positions are 1 to {len(events)}."
        )
    if event is not None:
        positions = [item.stream_version for item in events if item.event_id == event]
        if not positions:
            raise _build_bad_position_error(
                f"There is no event {event!r}.", "noetl replay state ID --at POSITION"
            )
        return positions[0]
    if time is not None:
        until = _parse_time(time)
        before = [item.stream_version for item in events if item.event_time <= until]
        if not before:
            raise _build_bad_position_error(
                f"The run had not begun at {until.isoformat()}.", "Name a later time."
            )
        return before[-1]
    return len(events) if at is None else at


def _parse_time(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise _build_bad_position_error(
            f"{text!r} is no time.", "--time 2026-01-31T12:00Z"
        ) from error
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _build_bad_position_error(message: str, way_out: str) -> CliError:
    return CliError(message, way_out=way_out, exit_code=ExitCode.USAGE)
