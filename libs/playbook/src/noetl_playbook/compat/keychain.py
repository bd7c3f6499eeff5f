"""Rewrites `type` of older keychain entries as `kind`."""

from collections.abc import Collection
from typing import Any

from noetl_playbook.source.document_reader import DocumentReader
from noetl_playbook.source.problems import Path, write_flow

_KINDS = {"oauth": "oauth2", "oauth2_client_credentials": "oauth2"}


def rename_entry_type(
    reading: DocumentReader, raw: dict[str, Any], path: Path, *, kinds: Collection[str]
) -> dict[str, Any]:
    """Rewrite `type` as `kind`; report an entry of an unknown kind, with the canonical form."""
    if raw.get("kind") is not None:
        return raw
    written_type = raw.get("type")
    kind = _KINDS.get(written_type, written_type) if isinstance(written_type, str) else None
    if kind is None or kind not in kinds:
        known_names = ", ".join(sorted(kinds))
        reading.report_problem(
            "E104",
            path,
            "a keychain entry needs 'kind'",
            hint=f"write {write_flow(_replace_type(raw, 'oauth2'))}; kind is one of {known_names}",
        )
        return raw
    entry_type = _replace_type(raw, kind)
    reading.report_problem(
        "W902",
        (*path, "type"),
        "'type' of a keychain entry is an older form of 'kind'",
        of_key=True,
        replacement=f"kind: {kind}",
    )
    reading.record_move((*path, "type"), (*path, "kind"))
    return entry_type


def _replace_type(raw: dict[str, Any], kind: str) -> dict[str, Any]:
    other_fields = {key: item for key, item in raw.items() if key not in ("name", "kind", "type")}
    return {"name": raw.get("name", "shop"), "kind": kind, **other_fields}
