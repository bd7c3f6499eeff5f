"""Decides what happens to claimed outbox rows, from which of them the stream stored."""

from collections.abc import Sequence

from msgspec import Struct

from noetl_contracts.ledger.records import OutboxRow


class BatchVerdict(Struct, frozen=True, kw_only=True):
    """Which rows go away, which are given back at once, and which wait for their lease to end."""

    settled: list[int]
    released: list[int]
    postponed: list[int]


def split_oversized(
    rows: Sequence[OutboxRow], *, bytes_max: int
) -> tuple[list[OutboxRow], list[OutboxRow]]:
    """Separate the rows that a stream takes from those that are too large for any."""
    fitting = [row for row in rows if len(row.data) <= bytes_max]
    return fitting, [row for row in rows if len(row.data) > bytes_max]


def decide_settlement(
    rows: Sequence[OutboxRow], stored: Sequence[bool], *, rows_max: int
) -> BatchVerdict:
    """Let go of exactly the rows whose message a stream has confirmed.

    Rows that failed out of a full batch are postponed: given back, they would be claimed again
    first and hold up the rows behind them, which may belong to a stream that is well.
    """
    pairs = list(zip(rows, stored, strict=True))
    failed = [row.outbox_id for row, is_stored in pairs if not is_stored]
    is_full = len(rows) >= rows_max
    return BatchVerdict(
        settled=[row.outbox_id for row, is_stored in pairs if is_stored],
        released=[] if is_full else failed,
        postponed=failed if is_full else [],
    )
