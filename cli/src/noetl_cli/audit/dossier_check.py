"""Checks a dossier without a browser: the digests of its parts, its chain, payloads and logs.

The parts are checked, and not the program in the page, which shows them. Somebody who makes all
of a dossier anew makes a new seal too: only its digest, noted when it was exported, tells.
"""

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from noetl_cli.audit import dossier, dossier_page
from noetl_cli.audit.dossier import PARTS, DossierSeal, SealedEvent
from noetl_contracts import codec
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger import stored_event
from noetl_contracts.ledger.records import HistoryHead
from noetl_contracts.ledger.stored_event import StoredEvent
from noetl_contracts.log_chunks import LogChunk, parse_chunk_name
from noetl_replay import payload_references
from noetl_replay.audit.chain import ChainExamination

SEAL = "seal"
# These say that something was wrong where the dossier was made; others are bounds of it.
_DAMAGES = frozenset({"", "missing", "corrupt", "refused"})


class DossierFinding(Struct, frozen=True, kw_only=True):
    """Something that is not as it was sealed, and what it is about."""

    name: str
    message: str


class KeptBytes(Struct, frozen=True, kw_only=True):
    """A payload or a chunk of logs as a dossier has it; without content `left_out` says why."""

    name: str
    sha256: str
    bytes: int
    content: str | None = None
    left_out: str = ""


class DossierCheck(Struct, kw_only=True):
    """What a check has found, and how much of the dossier it has looked at."""

    seal: DossierSeal | None = None
    seal_digest: str = ""
    events: int = 0
    concealed: int = 0
    payloads: int = 0
    chunks: int = 0
    findings: list[DossierFinding] = []

    def add_finding(self, name: str, message: str) -> None:
        """Take note of something that is wrong."""
        self.findings.append(DossierFinding(name=name, message=message))


def check_dossier(blocks: Mapping[str, Sequence[str]], *, wanted_seal: str = "") -> DossierCheck:
    """Compute every checksum of a dossier again; nothing found means that all is as sealed."""
    check = DossierCheck(findings=[])
    texts = {name: _choose_block(blocks, name, check) for name in (SEAL, *PARTS)}
    _check_seal(texts[SEAL], wanted_seal, check)
    for name in PARTS:
        _check_part(name, texts[name], check)
    events = _decode_list(texts, "events", SealedEvent, check)
    stored = _check_chain(events, check)
    _check_payloads(_decode_list(texts, "payloads", KeptBytes, check), stored, check)
    _check_logs(_decode_list(texts, "logs", KeptBytes, check), check)
    return check


def _choose_block(
    blocks: Mapping[str, Sequence[str]], name: str, check: DossierCheck
) -> str | None:
    texts = blocks.get(name, ())
    if len(texts) > 1:
        check.add_finding(f"part {name}", f"It stands in the page {len(texts)} times.")
    if not texts:
        check.add_finding(f"part {name}", "It is missing.")
        return None
    return texts[0]


def _check_seal(text: str | None, wanted_seal: str, check: DossierCheck) -> None:
    if text is None:
        return
    check.seal_digest = codec.digest_hex(text.encode())
    if wanted_seal and wanted_seal.lower() != check.seal_digest:
        check.add_finding(SEAL, f"Its digest is {check.seal_digest}, not the one that was given.")
    try:
        check.seal = codec.decode_as(text, DossierSeal)
    except (msgspec.DecodeError, RecursionError) as failure:
        check.add_finding(SEAL, f"It cannot be read: {failure}.")
        return
    stated = (check.seal.format, check.seal.format_version)
    if stated != (dossier.FORMAT, dossier.FORMAT_VERSION):
        check.add_finding(
            SEAL,
            f"It is of format {stated[0]!r:.80} {stated[1]}; this release checks {dossier.FORMAT} "
            f"{dossier.FORMAT_VERSION}.",
        )


def _check_part(name: str, text: str | None, check: DossierCheck) -> None:
    if text is None or check.seal is None:
        return
    sealed = check.seal.parts.get(name)
    if sealed is None:
        check.add_finding(f"part {name}", "The seal does not name it.")
    elif sealed != dossier.seal_part(text):
        check.add_finding(f"part {name}", "It was changed: its SHA-256 is not that of the seal.")


def _decode_list(
    texts: Mapping[str, str | None], name: str, kind: type[Any], check: DossierCheck
) -> list[Any]:
    value = dossier_page.decode_block(texts[name])
    try:
        return codec.convert_value(value, list[kind])  # type: ignore[valid-type]  # a class at hand
    except msgspec.ValidationError as failure:
        if texts[name] is not None:
            check.add_finding(f"part {name}", f"It cannot be read: {failure}.")
        return []


def _check_chain(events: Iterable[SealedEvent], check: DossierCheck) -> list[StoredEvent]:
    """Follow the chain from the first event to the head that the seal names."""
    stored: list[StoredEvent] = []
    for place, sealed in enumerate(events, start=1):
        event = _restore_event(sealed)
        if event is None:
            check.add_finding(f"line {place} of the events", "It is no event as one is sealed.")
        else:
            stored.append(event)
    examination = ChainExamination()
    examination.feed_events(stored)
    head = None if check.seal is None else check.seal.head
    findings = examination.finish_examination(
        None
        if head is None or check.seal is None
        else HistoryHead(
            execution_id=ExecutionId(check.seal.execution_id),
            version=head.version,
            checksum=head.checksum,
        )
    )
    for finding in findings:
        check.add_finding(f"event {finding.version}, {finding.damage}", finding.message)
    others = {event.execution_id for event in stored} - {check.seal and check.seal.execution_id}
    if check.seal is not None and others:
        check.add_finding("events", f"Some are of execution {', '.join(sorted(others))}.")
    check.events, check.concealed = len(stored), examination.concealed
    return stored


def _restore_event(sealed: SealedEvent) -> StoredEvent | None:
    """Return the event that a sealed text says; None where no event is written so."""
    try:
        fields = codec.decode_json(sealed.text)
        event = codec.convert_value(
            {
                **fields,
                "envelope_checksum": sealed.checksum,
                "concealed": sealed.concealed,
                "altered": sealed.altered,
            },
            StoredEvent,
        )
    except (msgspec.DecodeError, RecursionError, TypeError):
        return None
    return event if stored_event.encode_covered_fields(event) == sealed.text.encode() else None


def _check_payloads(
    kept: Iterable[KeptBytes], events: Iterable[StoredEvent], check: DossierCheck
) -> None:
    """Compare the bytes of each payload with its digest, and the list with what events name."""
    version_by_digest: dict[str, int] = {}
    for event in events:
        for sha256 in payload_references.collect_references([event.event, event.payload_ref]):
            version_by_digest.setdefault(sha256, event.stream_version)
    for content in kept:
        name = f"payload {content.sha256[:12]}"
        version = version_by_digest.pop(content.sha256, None)
        if version is None:
            check.add_finding(name, "No event refers to it, or it is there twice.")
        check.payloads += _check_bytes(name, content, check) is not None
    for sha256, version in version_by_digest.items():
        check.add_finding(
            f"payload {sha256[:12]}", f"It was taken out; event {version} refers to it."
        )


def _check_logs(kept: Iterable[KeptBytes], check: DossierCheck) -> None:
    """Follow each log: its chunks are numbered, and each has the digest of the one before."""
    latest_by_writer: dict[str, tuple[int, str]] = {}
    for content in kept:
        label = f"log {content.name}"
        name = parse_chunk_name(content.name)
        if name is None:
            check.add_finding(label, "No chunk of a log has such a name.")
            continue
        data = _check_bytes(label, content, check)
        before = latest_by_writer.get(name.writer, (0, ""))
        latest_by_writer[name.writer] = (name.number, content.sha256)
        if data is None:
            continue
        check.chunks += 1
        try:
            chunk = codec.decode_as(data, LogChunk)
        except (msgspec.DecodeError, RecursionError):
            check.add_finding(label, "It cannot be read.")
            continue
        if before != (chunk.number - 1, chunk.previous_sha256):
            check.add_finding(label, "Lines before it were changed or taken out.")


def _check_bytes(name: str, content: KeptBytes, check: DossierCheck) -> bytes | None:
    """Return the bytes that are held, also where they are not as they were sealed."""
    if content.content is None:
        if content.left_out in _DAMAGES:
            check.add_finding(name, f"It is not here: {content.left_out or 'nothing says why'}.")
        return None
    try:
        data = base64.b64decode(content.content, validate=True)
    except binascii.Error:
        data = b""
    if codec.digest_hex(data) != content.sha256:
        check.add_finding(name, "Its bytes were changed: they have another digest.")
    return data
