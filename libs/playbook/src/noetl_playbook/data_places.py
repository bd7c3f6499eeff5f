"""How lineage names the places of data: tables, files, addresses and lake tables."""

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

from noetl_contracts.openlineage import Dataset
from noetl_playbook.model.coercion import is_template

# A credential's fields are not known here: its name stands for the server that it leads to.
DATABASE_SCHEME = "postgres://"
_CATALOG_SCHEME = "iceberg://"
_PATTERN = re.compile(r"[^/]*[*?\[{].*")


def list_described(fields: Mapping[str, Any]) -> Iterator[Dataset]:
    """Name the dataset or table that an input or output describes, where its text tells.

    A pattern is named by the folder that its files are in.
    """
    table, iceberg = fields.get("table"), fields.get("iceberg")
    for place in ("path", "delta"):
        path = fields.get(place)
        if is_plain_text(path):
            is_web = str(path).startswith(("https://", "http://"))
            yield from list_address(path if is_web else _PATTERN.sub("", str(path)).rstrip("/"))
    if is_plain_text(table) and is_plain_text(fields.get("auth")):
        yield Dataset(namespace=f"{DATABASE_SCHEME}{fields['auth']}", name=str(table))
    if isinstance(iceberg, Mapping):
        name, catalog = iceberg.get("table"), iceberg.get("catalog")
        if is_plain_text(name) and is_plain_text(catalog):
            yield Dataset(namespace=f"{_CATALOG_SCHEME}{catalog}", name=str(name))


def list_address(value: Any) -> Iterator[Dataset]:
    """Name an address without what may be secret in it: user, query and fragment."""
    if not is_plain_text(value):
        return
    try:
        parts = urlsplit(str(value))
        namespace = _address_namespace(parts)
    except ValueError:
        return
    name = parts.path.lstrip("/") if parts.hostname else parts.path
    yield Dataset(namespace=namespace, name=name or "/")


def _address_namespace(parts: SplitResult) -> str:
    """Name the place of an address; raises `ValueError` for a port that is none.

    So does a scheme without a server: as of `jdbc:`, its path may hold a user and a password.
    """
    if not parts.hostname:
        if parts.scheme not in ("", "file"):
            raise ValueError(parts.scheme)
        return "file"
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}"


def is_plain_text(value: Any) -> bool:
    """Tell whether a value is a text that is known without a run."""
    return isinstance(value, str) and bool(value) and not is_template(value)
