"""Reads the entries of the keychain: what each kind says, and what it needs."""

from collections.abc import Mapping
from typing import Any

import msgspec

from noetl_playbook.compat.keychain import rename_entry_type
from noetl_playbook.model.playbook import KeychainEntry
from noetl_playbook.sections.auth_fields import check_auth
from noetl_playbook.sections.blocks import check_headers
from noetl_playbook.sections.field_types import (
    ANYTHING,
    FIELD_TYPES,
    FLAG,
    MAPPING,
    TEXT,
    FieldType,
    build_word_type,
    check_mapping_keys,
    spell_values,
)
from noetl_playbook.source.document_reader import DocumentReader
from noetl_playbook.source.problems import Path

# What is not used need not resolve (playbook-language, 12.2).
UNRESOLVABLE = "E208"


class EntryKind(msgspec.Struct, frozen=True, kw_only=True):
    """What an entry of one kind may say, and of each group of fields it needs one."""

    fields: Mapping[str, FieldType]
    needed: tuple[tuple[str, ...], ...] = ()


_REQUEST = {
    **{name: FIELD_TYPES["http"][name] for name in ("url", "method", "headers", "params", "form")},
    **dict.fromkeys(("json", "body", "data", "auth"), ANYTHING),
    "endpoint": TEXT,
    "verify_ssl": FLAG,
}
KINDS = {
    "static": EntryKind(fields={"map": MAPPING}, needed=(("map",),)),
    "bearer": EntryKind(fields={"token": TEXT}, needed=(("token",),)),
    "credential": EntryKind(fields={"credential": TEXT}),
    "secret_manager": EntryKind(
        fields={
            "provider": build_word_type("aws", "aws_ssm", "vault", "env", "file", "gcp", "azure"),
            "auth": ANYTHING,
            "map": MAPPING,
        },
        needed=(("provider",), ("map",)),
    ),
    # A credential has an address of its own.
    "oauth2": EntryKind(fields=_REQUEST, needed=(("endpoint", "url", "auth"),)),
    "http": EntryKind(fields={**_REQUEST, "map": MAPPING}, needed=(("url", "endpoint"), ("map",))),
    "google_id_token": EntryKind(
        fields=dict.fromkeys(
            ("service_account_secret", "service_account_credential", "target_audience"), TEXT
        ),
        needed=(("service_account_secret", "service_account_credential"), ("target_audience",)),
    ),
}
KIND_ALIASES = {"postgres_credential": "credential", "secrets": "secret_manager"}

_OF_ALL = {
    "name": TEXT,
    "kind": TEXT,
    "scope": build_word_type("local", "shared", "global"),
    "required": FLAG,
    "auto_renew": FLAG,
}


def read_keychain_entry(reading: DocumentReader, value: Any, path: Path) -> KeychainEntry | None:
    """Read one entry."""
    raw = reading.read_mapping(value, path)
    if raw is None:
        return None
    raw = rename_entry_type(reading, raw, path, kinds=KINDS)
    if raw.get("kind") is None:
        return None
    raw = _spell_texts(reading, raw, path)
    fields = {key: item for key, item in raw.items() if key not in ("name", "kind")}
    reading.add_templates(fields, path)
    keychain_entry = reading.read_fields(
        KeychainEntry, {key: raw[key] for key in ("name", "kind") if key in raw}, path
    )
    entry: KeychainEntry | None = reading.build_struct(
        KeychainEntry, {**keychain_entry, "fields": fields}, path
    )
    if entry is not None:
        _check_entry(reading, entry, raw, path)
    return entry


def _spell_texts(reading: DocumentReader, raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """Keep scalars as they are written where the entry's kind takes text."""
    name = raw.get("kind")
    kind = KINDS.get(KIND_ALIASES.get(name, name)) if isinstance(name, str) else None
    return raw if kind is None else spell_values(reading, kind.fields, raw, path)


def _check_entry(
    reading: DocumentReader, entry: KeychainEntry, raw: dict[str, Any], path: Path
) -> None:
    kind = KINDS.get(KIND_ALIASES.get(entry.kind, entry.kind))
    if kind is None:
        entry_kinds = (*KINDS, *KIND_ALIASES)
        reading.report_problem(
            UNRESOLVABLE,
            (*path, "kind"),
            f"'{entry.kind}' is not a kind of keychain entry",
            hint=reading.suggest_word(entry.kind, entry_kinds) or f"one of {', '.join(KINDS)}",
        )
        return
    fields = {**_OF_ALL, **kind.fields}
    check_mapping_keys(reading, fields, raw, path, about=f"a keychain entry of kind {entry.kind}")
    if "headers" in kind.fields:
        check_headers(reading, raw.get("headers"), (*path, "headers"))
    if "auth" in kind.fields:
        check_auth(reading, raw.get("auth"), (*path, "auth"))
    for group in kind.needed:
        if all(raw.get(name) is None for name in group):
            choices = " or ".join(f"'{name}'" for name in group)
            reading.report_problem(
                UNRESOLVABLE, path, f"a keychain entry of kind {entry.kind} needs {choices}"
            )
