"""`python -m tests.replay.record`: write golden histories that are not there yet.

A history that is there is never written again: an old release's events must go on to fold.
"""

import itertools
import sys
from pathlib import Path

from tests.support.builders import stories
from tests.support.stories import decided

from noetl_contracts import codec
from noetl_contracts.ledger import stored_event
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.ledger.stored_event import StoredEvent
from noetl_replay import comparison, state

HISTORIES = Path(__file__).parent / "histories"


def paths(name: str) -> tuple[Path, Path]:
    return HISTORIES / f"{name}.jsonl", HISTORIES / f"{name}.checksums.json"


def names() -> list[str]:
    return sorted(path.stem for path in HISTORIES.glob("*.jsonl"))


def load_stored(name: str) -> list[StoredEvent]:
    """The history as it was written, byte by byte."""
    return [
        stored_event.decode_stored_event(line) for line in paths(name)[0].read_bytes().splitlines()
    ]


def load(name: str) -> list[Envelope]:
    """The history as this release reads it."""
    return [stored_event.read_envelope(item) for item in load_stored(name)]


def fingerprint(history: list[Envelope]) -> dict[str, str | int]:
    """What a history folds to: its surfaces, and where it ends."""
    first = history[0]
    begun = state.build_empty_state(first.execution_id, first.tenant_id, first.organization_id)
    ended, surfaces = comparison.replay_surfaces(begun, history)
    return {
        "version": ended.version,
        "status": str(ended.status),
        "envelope_checksum": ended.checksum,
        **comparison.compute_surface_checksums(surfaces),
    }


def main() -> None:
    for name, story in itertools.chain(stories(), decided()):
        events, checksums = paths(name)
        if not events.exists():
            events.write_bytes(
                b"".join(codec.encode_json(envelope) + b"\n" for envelope in story.envelopes)
            )
        if not checksums.exists():
            body = fingerprint(load(name))
            lines = ",\n".join(
                f'  "{key}": {codec.encode_text(value)}' for key, value in body.items()
            )
            checksums.write_text(f"{{\n{lines}\n}}\n")
            sys.stdout.write(f"recorded {name}\n")


if __name__ == "__main__":
    main()
