"""A chunk of a stream: rows that a task gave while it was still running."""

from msgspec import Struct

from noetl_contracts.payloads import PayloadRef

CHUNKS_MAX = 100_000
CHUNK_BYTES_MAX = 16 * 1024 * 1024


class Chunk(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One chunk; its rows are the JSON list in the payload `ref`, and its run and `index` name it.

    `has_more` tells whether rows followed when it was emitted.
    """

    index: int
    row_count: int
    ref: PayloadRef
    has_more: bool = False


class Taken(Struct, frozen=True, kw_only=True):
    """How far the planner is with a stream: chunks `received`, and of these `accepted`.

    A chunk is accepted when every activation that it leads to has been dispatched.
    """

    received: int
    accepted: int

    def token(self) -> str:
        """Write it as the last token of a hint's subject."""
        return f"{self.received}-{self.accepted}"


def parse_taken(token: str) -> Taken | None:
    """Read the last token of a hint's subject; None for what is none."""
    received, _, accepted = token.partition("-")
    if not (received.isdigit() and accepted.isdigit()):
        return None
    return Taken(received=int(received), accepted=int(accepted))
