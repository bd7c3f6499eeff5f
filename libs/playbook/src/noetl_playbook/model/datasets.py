"""Datasets that a task reads or writes: files in folders and buckets, and lake tables.

One description serves every tool. Keys and values are checked here; templates inside of them are
rendered before.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NoReturn

from msgspec import Struct

from noetl_contracts import spelling
from noetl_playbook.model import coercion, expectations
from noetl_playbook.model.expectations import ExpectationInvalid, Expectations

FORMATS = ("parquet", "csv", "ndjson", "json", "orc", "avro", "arrow")
SINK_FORMATS = ("parquet", "csv", "ndjson", "orc", "arrow")
MODES = ("error", "append", "overwrite", "overwrite_partitions", "upsert")
COMPRESSIONS = ("none", "gzip", "zstd", "snappy", "lz4")
# Where the rows of a dataset are: exactly one of them.
PLACES = ("path", "iceberg", "delta")
# A stream writes into tables of PostgreSQL too.
TABLE = "table"
SINK_PLACES = (*PLACES, TABLE)
TABLE_MODES = ("append", "upsert", "overwrite")
TABLE_KEYS = (TABLE, "auth", "mode", "key", "expect")
# Where lake tables may be; files may be in a container of Azure too.
LAKE_SCHEMES = ("s3", "gs")
SCHEMES = (*LAKE_SCHEMES, "abfss")
# Single files are read from servers, and not written there.
WEB_SCHEMES = ("https", "http")
FILE_BYTES = 128 * 1000 * 1000
FILE_BYTES_MIN = 1_000_000
FILE_BYTES_MAX = 5_000_000_000

_SUFFIXES = {
    **{name: name for name in FORMATS},
    "pq": "parquet",
    "jsonl": "ndjson",
    "feather": "arrow",
    "ipc": "arrow",
}
_PACKING_SUFFIXES = (".gz", ".zst", ".bz2", ".lz4")
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://")

BadRow = Literal["fail", "skip", "divert"]


class DatasetInvalid(ValueError):  # noqa: N818 - it is told as the task's own error
    """A description of a dataset says what no dataset is."""


class CsvOptions(Struct, frozen=True, kw_only=True):
    """How a CSV file is written; `null_values` are texts without quotes that mean null."""

    header: bool = True
    delimiter: str = ","
    quote: str = '"'
    escape: str | None = None
    encoding: str = "utf-8"
    null_values: tuple[str, ...] = ("",)
    multi_line: bool = True


class LakeTable(Struct, frozen=True, kw_only=True):
    """An Iceberg table: `catalog` is a credential of the PostgreSQL that holds the catalog.

    `warehouse` is the folder or bucket below which its tables are.
    """

    name: str
    catalog: str
    warehouse: str


class DatasetSource(Struct, frozen=True, kw_only=True):
    """Rows to read, of `columns` alone where they are named.

    `schema` is DDL, or for CSV `text` or `infer`; without it files of other formats have their own
    types, and those of CSV are inferred so that nothing is lost. `as_of` is a version's number or a
    moment of a lake table. `types` are those of single columns of CSV and JSON.
    """

    path: str | None = None
    iceberg: LakeTable | None = None
    delta: str | None = None
    auth: Any = None
    format: str | None = None
    schema: str | None = None
    csv: CsvOptions = CsvOptions()
    types: dict[str, str] = {}
    columns: tuple[str, ...] = ()
    on_bad_row: BadRow = "fail"
    merge_schema: bool = False
    as_of: str | None = None
    expect: Expectations | None = None


class DatasetSink(Struct, frozen=True, kw_only=True):
    """Where rows are written, and how they join what is there; `table` is one of PostgreSQL."""

    path: str | None = None
    iceberg: LakeTable | None = None
    delta: str | None = None
    table: str | None = None
    auth: Any = None
    format: str = "parquet"
    mode: str = "error"
    partition_by: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    file_bytes: int = FILE_BYTES
    compression: str | None = None
    csv: CsvOptions = CsvOptions()
    expect: Expectations | None = None

    @property
    def may_grow(self) -> bool:
        """Tell whether the dataset is given the columns of the rows that it lacks."""
        check = None if self.expect is None else self.expect.schema
        return check is not None and check.drift == "evolve"


_CSV_KEYS = tuple(CsvOptions.__struct_fields__)
SOURCE_KEYS = (
    *PLACES,
    *("auth", "format", "schema", "types", "columns", "on_bad_row", "merge_schema", "as_of"),
    "expect",
    *_CSV_KEYS,
)
SINK_KEYS = (
    *PLACES,
    *("auth", "format", "mode", "partition_by", "key", "file_size", "compression"),
    "expect",
    *("header", "delimiter", "quote"),
)


def describes_dataset(value: Any) -> bool:
    """Tell whether a mapping says where files or a lake table are."""
    return isinstance(value, Mapping) and any(value.get(name) is not None for name in PLACES)


def is_bucket_path(path: str) -> bool:
    """Tell whether a path is an address in an object store."""
    match = _SCHEME.match(path)
    return match is not None and match[1] in SCHEMES


def is_web_path(path: str) -> bool:
    """Tell whether a path is the address of a file on an HTTP server."""
    match = _SCHEME.match(path)
    return match is not None and match[1] in WEB_SCHEMES


def parse_source(fields: Mapping[str, Any]) -> DatasetSource:
    """Read the description of a source; raises `DatasetInvalid`."""
    _check_keys(fields, SOURCE_KEYS)
    place = _parse_place(fields, schemes=(*SCHEMES, *WEB_SCHEMES))
    csv = _parse_csv(fields)
    format_ = _parse_format(fields, _drop_query(place.get("path")), FORMATS)
    bad_row = fields.get("on_bad_row", "fail")
    if bad_row not in ("fail", "skip", "divert"):
        _refuse_value(f"on_bad_row is {bad_row!r:.40}: use fail, skip or divert")
    csv_keys = [name for name in _CSV_KEYS if fields.get(name) is not None]
    if csv_keys and "path" not in place:
        _refuse_value(f"'{csv_keys[0]}' is for csv, and a lake table is parquet")
    # The format of a path without a suffix is known when its files are found.
    if csv_keys and format_ not in (None, "csv"):
        _refuse_value(f"'{csv_keys[0]}' is for csv, and this dataset is {format_}")
    as_of = fields.get("as_of")
    if as_of is not None and "path" in place:
        _refuse_value("'as_of' is for iceberg and delta: files have one state")
    schema = fields.get("schema")
    if schema is not None and not isinstance(schema, str):
        _refuse_value('schema is a text such as "id BIGINT, joined DATE", or infer')
    return DatasetSource(
        **place,
        auth=fields.get("auth"),
        format=format_,
        schema=schema,
        types=_parse_types(fields.get("types"), format_),
        columns=_parse_names(fields.get("columns"), "columns"),
        csv=csv,
        on_bad_row=bad_row,
        merge_schema=_parse_flag(fields, "merge_schema", default=False),
        as_of=None if as_of is None else str(as_of),
        expect=_parse_expect(fields),
    )


def parse_sink(fields: Mapping[str, Any]) -> DatasetSink:
    """Read the description of a sink; raises `DatasetInvalid`."""
    _check_keys(fields, (*SINK_KEYS, TABLE))
    place = _parse_place(fields, SINK_PLACES)
    if TABLE in place:
        return _parse_table_sink(fields, place)
    is_files = "path" in place
    format_ = _parse_format(fields, None, SINK_FORMATS) or "parquet"
    if not is_files and format_ != "parquet":
        _refuse_value("the files of a lake table are parquet: leave 'format' out")
    mode = fields.get("mode") or "error"
    if mode not in MODES:
        _refuse_value(f"mode is {mode!r:.40}: {_suggest_word(str(mode), MODES)}")
    key = _parse_names(fields.get("key"), "key")
    if mode == "upsert" and (is_files or not key):
        _refuse_value(
            "mode upsert is for iceberg and delta, and needs 'key': the columns of the key"
        )
    partition_by = _parse_names(fields.get("partition_by"), "partition_by")
    if mode == "overwrite_partitions" and not partition_by:
        _refuse_value("mode overwrite_partitions needs 'partition_by'")
    compression, csv, expect = fields.get("compression"), _parse_csv(fields), _parse_expect(fields)
    if compression is not None and compression not in COMPRESSIONS:
        _refuse_value(
            f"compression is {compression!r:.40}: {_suggest_word(str(compression), COMPRESSIONS)}"
        )
    sink = DatasetSink(
        **place,
        auth=fields.get("auth"),
        format=format_,
        mode=mode,
        partition_by=partition_by,
        key=key,
        file_bytes=_parse_file_size(fields.get("file_size")),
        compression=compression,
        csv=csv,
        expect=expect,
    )
    if sink.may_grow and format_ == "csv" and not csv.header:
        _refuse_value(
            "expect.schema.drift: evolve needs the names of the columns in each file, and csv with "
            "header: false has none: leave 'header' out, or write parquet"
        )
    return sink


def find_format(path: str) -> str | None:
    """Return the format that the suffix of a path names, None where it names none."""
    name = path.rstrip("/").rsplit("/", 1)[-1].lower()
    for suffix in _PACKING_SUFFIXES:
        name = name.removesuffix(suffix)
    return _SUFFIXES.get(name.rsplit(".", 1)[-1]) if "." in name else None


def _parse_table_sink(fields: Mapping[str, Any], place: Mapping[str, Any]) -> DatasetSink:
    """Read the description of a table that the batches of a stream go to."""
    of_files = [name for name in fields if name not in TABLE_KEYS and fields[name] is not None]
    if of_files:
        _refuse_value(f"'{of_files[0]}' is for files: a table takes {', '.join(TABLE_KEYS)}")
    mode = fields.get("mode") or "error"
    if mode not in TABLE_MODES:
        _refuse_value(
            f"mode is {mode!r:.40}: a table takes append, upsert by 'key', or overwrite, which "
            "replaces all its rows with all groups of a query that sums up"
        )
    key = _parse_names(fields.get("key"), "key")
    if bool(key) != (mode == "upsert"):
        _refuse_value("mode upsert of a table, and no other, has 'key': the columns of the key")
    if fields.get("auth") is None:
        _refuse_value("a table needs 'auth': the name of a credential of type postgres")
    return DatasetSink(
        table=place[TABLE], auth=fields["auth"], mode=mode, key=key, expect=_parse_expect(fields)
    )


def _drop_query(path: str | None) -> str | None:
    """Return an address without what a server is asked beside its path."""
    return path.partition("?")[0] if path is not None and is_web_path(path) else path


def _parse_place(
    fields: Mapping[str, Any],
    names: Sequence[str] = PLACES,
    *,
    schemes: Sequence[str] = SCHEMES,
) -> dict[str, Any]:
    place_keys = [name for name in names if fields.get(name) is not None]
    if len(place_keys) != 1:
        _refuse_value(f"a dataset has one of {', '.join(names)}")
    (name,) = place_keys
    value = fields[name]
    if name == "iceberg":
        return {name: _parse_iceberg(value)}
    if not isinstance(value, str) or not value.strip():
        _refuse_value(f"'{name}' is a text, not {value!r:.60}")
    scheme = _SCHEME.match(value)
    known_schemes = schemes if name == "path" else LAKE_SCHEMES
    if scheme is not None and scheme[1] not in (*known_schemes, "noetl", "file"):
        _refuse_value(
            f"{_drop_query(value)!r:.120} has the scheme '{scheme[1]}': '{name}' is in "
            f"{', '.join(known_schemes)}, or in files of the execution, to which kind http, "
            "transfer and artifact bring others"
        )
    return {name: value}


def _parse_iceberg(value: Any) -> LakeTable:
    keys = ("table", "catalog", "warehouse")
    if not isinstance(value, Mapping) or value.keys() != set(keys):
        _refuse_value(
            "iceberg is {table: sales.daily, catalog: pg, warehouse: s3://lake/warehouse/}"
        )
    name, catalog, warehouse = (value[key] for key in keys)
    if not isinstance(name, str) or not re.fullmatch(r"\w+(\.\w+)+", name):
        _refuse_value(f"an iceberg table is named namespace.table, not {name!r:.60}")
    scheme = _SCHEME.match(warehouse) if isinstance(warehouse, str) else None
    if scheme is None or scheme[1] not in LAKE_SCHEMES:
        _refuse_value(f"the warehouse of an iceberg table is in a bucket, not {warehouse!r:.60}")
    return LakeTable(name=name, catalog=str(catalog), warehouse=warehouse)


def _parse_format(
    fields: Mapping[str, Any], path: str | None, known_names: Sequence[str]
) -> str | None:
    value = fields.get("format")
    if value in (None, "auto"):
        return None if path is None else find_format(path)
    name = {"jsonl": "ndjson"}.get(str(value).lower(), str(value).lower())
    if name not in known_names:
        _refuse_value(f"format is {value!r:.40}: {_suggest_word(name, known_names)}")
    return name


def _parse_csv(fields: Mapping[str, Any]) -> CsvOptions:
    csv_options: dict[str, Any] = {}
    for name, size in (("delimiter", 1), ("quote", 1), ("escape", 1)):
        value = fields.get(name)
        if value is None:
            continue
        text = {"\\t": "\t", "tab": "\t"}.get(str(value), str(value))
        if len(text) != size or not text.isascii():
            _refuse_value(f"{name} is one ASCII character, not {value!r:.40}")
        csv_options[name] = text
    nulls = fields.get("null_values")
    if nulls is not None:
        if not isinstance(nulls, list | tuple):
            _refuse_value("null_values is a list of texts")
        csv_options["null_values"] = tuple(str(null) for null in nulls)
    if fields.get("encoding") is not None:
        csv_options["encoding"] = str(fields["encoding"])
    for name in ("header", "multi_line"):
        csv_options[name] = _parse_flag(fields, name, default=True)
    return CsvOptions(**csv_options)


def _parse_flag(fields: Mapping[str, Any], name: str, *, default: bool) -> bool:
    if fields.get(name) is None:
        return default
    boolean = coercion.coerce_boolean(fields[name])
    if boolean is None:
        _refuse_value(f"{name} is true or false, not {fields[name]!r:.40}")
    return boolean


def _parse_names(value: Any, field: str) -> tuple[str, ...]:
    if value is None:
        return ()
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        _refuse_value(f"{field} is a column's name, or a list of them")
    return tuple(names)


def _parse_expect(fields: Mapping[str, Any]) -> Expectations | None:
    try:
        return expectations.parse_expectations(fields.get("expect"))
    except ExpectationInvalid as problem:
        raise DatasetInvalid(str(problem)) from problem


def _parse_types(value: Any, format_: str | None) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        _refuse_value("'types' maps columns to types")
    if format_ not in ("csv", "json", "ndjson"):
        _refuse_value(f"files of {format_} have types of their own: leave 'types' out")
    return {str(name): str(kind) for name, kind in value.items()}


def _parse_file_size(value: Any) -> int:
    if value is None:
        return FILE_BYTES
    size_bytes = coercion.coerce_size_bytes(value)
    if size_bytes is None or not FILE_BYTES_MIN <= size_bytes <= FILE_BYTES_MAX:
        _refuse_value(f"file_size is {value!r:.40}: it is from 1MB to 5GB, as 128MB")
    return int(size_bytes)


def _check_keys(fields: Mapping[str, Any], known_names: Sequence[str]) -> None:
    unknown = sorted(str(name) for name in fields if name not in known_names)
    if unknown:
        _refuse_value(
            f"'{unknown[0]}' is no key of a dataset: {_suggest_word(unknown[0], known_names)}"
        )


def _suggest_word(word: str, known_names: Sequence[str]) -> str:
    return spelling.suggest_word(word, known_names) or f"use {', '.join(known_names)}"


def _refuse_value(text: str) -> NoReturn:
    raise DatasetInvalid(text)
