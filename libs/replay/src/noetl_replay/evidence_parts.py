"""The parts of a folder of evidence, read; and how what is wrong with one is said."""

from typing import Any

import msgspec
from msgspec import Struct

from noetl_contracts import codec, stored
from noetl_contracts.errors import MalformedMessage, Permanent
from noetl_contracts.stored import StoredEvent
from noetl_replay.evidence import FILE_BY_ROLE, Checksums, LiveRows, Manifest, PayloadReport


class Problem(Struct, frozen=True, kw_only=True):
    """A thing that is wrong with a folder: which kind, in which file, in one sentence."""

    code: str
    artifact: str
    message: str


class Unreadable(Permanent):
    """A part of the evidence cannot be read at all."""

    def __init__(self, code: str, artifact: str, message: str) -> None:
        super().__init__(message)
        self.problem = Problem(code=code, artifact=artifact, message=message)


class ReplayReport(Struct, frozen=True, kw_only=True):
    """What the history came to when the evidence was gathered."""

    execution_id: str
    tenant_id: str
    organization_id: str
    version: int
    event_id: str | None
    envelope_checksum: str
    checksum_algorithm: str
    fold_version: int
    upcaster_digest: str
    status: str
    projection: str
    state: dict[str, Any]
    state_checksum: str
    surfaces: dict[str, dict[str, dict[str, Any]]]
    projection_checksums: dict[str, str]


class Parts(Struct, frozen=True, kw_only=True):
    """Every part, read."""

    manifest: Manifest
    events: list[StoredEvent]
    replay: ReplayReport
    live_rows: LiveRows
    checksums: Checksums
    payloads: PayloadReport


_KIND_BY_ROLE: dict[str, type[Struct]] = {
    "manifest": Manifest,
    "replay": ReplayReport,
    "live_rows": LiveRows,
    "checksums": Checksums,
    "payloads": PayloadReport,
}


def read(role: str, data: bytes) -> Any:
    """Read one part; raises `Unreadable`."""
    if role == "events":
        return _events(data)
    path = FILE_BY_ROLE[role]
    try:
        return codec.decode_as(data, _KIND_BY_ROLE[role])
    except msgspec.ValidationError as failure:
        raise Unreadable(
            f"{role}_shape", path, f"{path} does not have the shape of its part: {failure}"
        ) from failure
    except (msgspec.DecodeError, RecursionError) as failure:
        raise Unreadable(f"{role}_not_json", path, f"{path} is not JSON: {failure}") from failure


def _events(data: bytes) -> list[StoredEvent]:
    path, found = FILE_BY_ROLE["events"], []
    for number, line in enumerate(data.splitlines(), start=1):
        try:
            found.append(stored.decode(line))
        except MalformedMessage as failure:
            raise Unreadable(
                "events_line", path, f"line {number} of {path} is no event: {failure}"
            ) from failure
    if not found:
        raise Unreadable("events_empty", path, f"{path} holds no event")
    return found
