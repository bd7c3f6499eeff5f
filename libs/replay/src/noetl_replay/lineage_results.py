"""Results of steps as datasets: version, columns, size, and where the content lies."""

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, Struct

from noetl_contracts import codec
from noetl_contracts.openlineage import (
    DatasetFacets,
    Field,
    Identifier,
    OutputFacets,
    OutputStatisticsFacet,
    SchemaFacet,
    SymlinksFacet,
    VersionFacet,
)
from noetl_contracts.payloads import ResultEnvelope

COLUMNS_MAX = 500


class KnownResult(Struct, frozen=True, kw_only=True):
    """A step's result as a dataset: its version is the SHA-256 of its content."""

    sha256: str
    uri: str | None = None
    row_count: int | None = None
    size: int | None = None
    columns: tuple[str, ...] = ()


def facets(result: KnownResult, *, namespace: str) -> DatasetFacets:
    """Say what is known of a result as a dataset."""
    place = Identifier(namespace=namespace, name=result.uri or "", type="LOCATION")
    return DatasetFacets(
        version=VersionFacet(dataset_version=result.sha256),
        schema=SchemaFacet(fields=[Field(name=column) for column in result.columns])
        if result.columns
        else UNSET,
        symlinks=SymlinksFacet(identifiers=[place]) if result.uri is not None else UNSET,
    )


def statistics(result: KnownResult) -> OutputFacets:
    """Say how much a result holds."""
    return OutputFacets(
        output_statistics=OutputStatisticsFacet(
            row_count=UNSET if result.row_count is None else result.row_count,
            size=UNSET if result.size is None else result.size,
        )
    )


def known(result: ResultEnvelope | None) -> KnownResult | None:
    """Read what an envelope tells of a result; an inline one is its own content."""
    if result is None:
        return None
    reference, rows = result.reference, _front(result.context.get("data"))
    if reference is not None:
        return KnownResult(
            sha256=reference.sha256,
            uri=reference.uri,
            row_count=reference.row_count,
            size=reference.payload_bytes,
            columns=_columns(result.context.get("columns")),
        )
    if "data" not in result.context:
        return None
    content = codec.canonical(result.context["data"])
    return KnownResult(
        sha256=codec.digest(content),
        row_count=_count(rows),
        size=len(content),
        columns=_columns(rows.get("columns")),
    )


def _front(data: Any) -> Mapping[str, Any]:
    """Return what the last task of an inline result came to, where that is a mapping."""
    if not isinstance(data, dict):
        return {}
    tasks = data.get("tasks")
    front = tasks.get(data.get("last")) if isinstance(tasks, dict) else None
    raw = front.get("raw") if isinstance(front, dict) else None
    return raw if isinstance(raw, dict) else {}


def _count(rows: Mapping[str, Any]) -> int | None:
    count = rows.get("row_count")
    return count if isinstance(count, int) and not isinstance(count, bool) else None


def _columns(value: Any) -> tuple[str, ...]:
    """Read names of columns, written as texts or as mappings with a name."""
    found = []
    for one in value if isinstance(value, list) else ():
        name = one.get("name") if isinstance(one, dict) else one
        if isinstance(name, str):
            found.append(name)
    return tuple(found[:COLUMNS_MAX])
