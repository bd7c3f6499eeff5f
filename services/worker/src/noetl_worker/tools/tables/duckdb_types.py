"""Types of DuckDB's columns and of Arrow's: what each is on the other side."""

import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from noetl_playbook.templates.output_forms import sql_ident
from noetl_storage.arrow import table_schema
from noetl_storage.arrow.table_schema import DECIMAL_DIGITS_MAX
from noetl_worker.domain.failures import ToolFailure, build_error

_IS_ALTERED = re.compile(r"\b(?:UHUGEINT|BIGNUM|TIME WITH TIME ZONE)\b")
_IS_PLAIN = re.compile(
    r"BOOLEAN|U?(?:TINYINT|SMALLINT|INTEGER|BIGINT)|FLOAT|DOUBLE|VARCHAR|DATE|DECIMAL\(.*\)"
    r"|TIMESTAMP(?:_S|_MS|_NS| WITH TIME ZONE)?"
)
# What Arrow carries as something else than it is.
_TYPE_BY_KIND = {
    "UUID": "uuid",
    "JSON": "json",
    "BIT": "string",
    "UHUGEINT": "decimal256(39, 0)",
    "BIGNUM": "decimal256(76, 0)",
}


def list_types(schema: pa.Schema, kinds: Sequence[str]) -> list[str]:
    """Return the types of a query's columns; `kinds` are DuckDB's names of them."""
    return [
        _TYPE_BY_KIND.get(kind) or table_schema.format_arrow_type(field.type)
        for field, kind in zip(schema, kinds, strict=True)
    ]


def are_all_plain(kinds: Sequence[str]) -> bool:
    """Tell whether columns read back from a stored table as they read now."""
    return all(_IS_PLAIN.fullmatch(kind) for kind in kinds)


def project_readable(relation: Any, kinds: Sequence[str]) -> Any:
    """Let DuckDB itself write the values that Arrow would not carry as they are."""
    if not any(_IS_ALTERED.search(kind) for kind in kinds):
        return relation
    parts = (
        f"#{place}::varchar AS {sql_ident(name)}" if _IS_ALTERED.search(kind) else f"#{place}"
        for place, (name, kind) in enumerate(zip(relation.columns, kinds, strict=True), start=1)
    )
    return relation.project(", ".join(parts))


def fit_input(label: str, table: Any) -> Any:
    """Give a table the types that DuckDB has, each value exactly; `label` names it in errors.

    Raises `ToolFailure`.
    """
    for place, field in enumerate(table.schema):
        kind = _fit_type(field.type)
        if kind.equals(field.type):
            continue
        if not isinstance(table, pa.Table):
            raise _build_unfit_failure(label, field)
        try:
            column = table.column(place).cast(kind)
        except pa.ArrowException as problem:
            raise _build_unfit_failure(label, field) from problem
        table = table.set_column(place, field.name, column)
    return table


def _fit_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal256(kind):
        return pa.decimal128(DECIMAL_DIGITS_MAX, min(kind.scale, DECIMAL_DIGITS_MAX))
    if pa.types.is_float16(kind):
        return pa.float32()
    return _fit_nested_type(kind)


def _fit_nested_type(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_list(kind):
        inner = _fit_type(kind.value_type)
        return kind if inner.equals(kind.value_type) else pa.list_(inner)
    if types.is_struct(kind):
        inner_kinds = [_fit_type(field.type) for field in kind]
        if all(item.equals(field.type) for item, field in zip(inner_kinds, kind, strict=True)):
            return kind
        fields = zip((field.name for field in kind), inner_kinds, strict=True)
        return pa.struct(list(fields))
    return kind


def _build_unfit_failure(label: str, field: pa.Field) -> ToolFailure:
    text = (
        f"{label}: column '{field.name}' is {table_schema.format_arrow_type(field.type)}, "
        f"and DuckDB holds decimals of at most {DECIMAL_DIGITS_MAX} digits: cast it to fewer "
        "digits, or to text, where it is made"
    )
    return ToolFailure(build_error("schema", text, source="duckdb"))
