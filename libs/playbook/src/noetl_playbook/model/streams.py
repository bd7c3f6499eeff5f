"""What `follow` of a Spark task of mode `stream` says: when batches begin, and where they go on.

Keys and values are checked here; templates inside of them are rendered before.
"""

import re
from collections.abc import Mapping
from typing import Any, NoReturn

from msgspec import Struct

from noetl_contracts import spelling
from noetl_playbook.model import coercion

MODES = ("batch", "stream")
AVAILABLE_NOW = "available_now"
FILES_MAX = 10_000
TRIGGER_S_MAX = 3600.0
# What each mode of an output lets a batch do: Spark calls it the output mode.
OUTPUT_MODES = {"append": "append", "upsert": "update", "overwrite": "complete"}
# What a task of mode batch is told that names a table.
NO_TABLE = (
    "output.table is for mode stream: a task of kind transfer with engine: spark writes the result "
    "of this one into a table"
)
_FILES = 1000
# Stands for what only the run will tell.
_ANY_NAME = "unknown"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_KEYS = ("checkpoint", "trigger", "until", "input", "files_per_batch", "watermark")


class StreamInvalid(ValueError):  # noqa: N818 - it is told as the task's own error
    """A stream says what no stream can be."""


class Watermark(Struct, frozen=True, kw_only=True):
    """How late a row may come, by a column that holds a moment."""

    column: str
    delay_s: float


class StreamOptions(Struct, frozen=True, kw_only=True):
    """How a query follows files that arrive.

    `trigger_s` is the time between the beginnings of two batches; None reads what is there now, and
    ends. `until_s` ends a stream after a time. `input` is the input that arrives; None stands for
    the only one.
    """

    checkpoint: str
    trigger_s: float | None = None
    until_s: float | None = None
    input: str | None = None
    files_per_batch: int = _FILES
    watermark: Watermark | None = None


def parse_stream(fields: Any) -> StreamOptions:
    """Read `follow` of a task; raises `StreamInvalid`."""
    if not isinstance(fields, Mapping):
        _refuse_value("mode stream needs follow: {checkpoint: orders, trigger: 10s}")
    unknown = sorted(str(name) for name in fields if name not in _KEYS)
    if unknown:
        hint = spelling.suggest_word(unknown[0], _KEYS) or f"use {', '.join(_KEYS)}"
        _refuse_value(f"'{unknown[0]}' is no key of follow: {hint}")
    name = fields.get("checkpoint")
    if name is None:
        _refuse_value("follow needs 'checkpoint': the name under which it goes on")
    if not isinstance(name, str) or not is_checkpoint_name(name):
        _refuse_value(
            f"checkpoint is a name of letters, digits, '_', '.' and '-', not {name!r:.60}"
        )
    trigger_s = _parse_trigger(fields.get("trigger"))
    until_s = _parse_duration_s(fields, "until")
    if until_s is not None and trigger_s is None:
        _refuse_value("'until' is for a trigger that repeats: available_now ends by itself")
    return StreamOptions(
        checkpoint=name,
        trigger_s=trigger_s,
        until_s=until_s,
        input=_parse_text(fields, "input"),
        files_per_batch=_parse_files(fields.get("files_per_batch")),
        watermark=_parse_watermark(fields.get("watermark")),
    )


def is_checkpoint_name(text: str) -> bool:
    """Tell whether text may name a checkpoint."""
    return _NAME.fullmatch(text) is not None


def check_written_out(fields: Mapping[str, Any]) -> None:
    """Check what is written out, and leave the rest to the run; raises `StreamInvalid`."""
    plain_fields = {name: item for name, item in fields.items() if not coercion.is_template(item)}
    if "checkpoint" in fields:
        plain_fields.setdefault("checkpoint", _ANY_NAME)
    if "trigger" in fields and "trigger" not in plain_fields:
        plain_fields["trigger"] = 0
    watermark = plain_fields.get("watermark")
    if isinstance(watermark, Mapping) and any(map(coercion.is_template, watermark.values())):
        del plain_fields["watermark"]
    parse_stream(plain_fields)


def _parse_trigger(value: Any) -> float | None:
    if value in (None, AVAILABLE_NOW):
        return None
    trigger_s = coercion.coerce_duration_s(value)
    if trigger_s is None or not 0 <= trigger_s <= TRIGGER_S_MAX:
        _refuse_value(
            f"trigger is {value!r:.40}: it is {AVAILABLE_NOW}, or a time of at most an hour, as 10s"
        )
    return float(trigger_s)


def _parse_duration_s(fields: Mapping[str, Any], name: str) -> float | None:
    value = fields.get(name)
    if value is None:
        return None
    duration_s = coercion.coerce_duration_s(value)
    if duration_s is None or duration_s <= 0:
        _refuse_value(f"{name} is {value!r:.40}: it is a time above 0, as 8h")
    return float(duration_s)


def _parse_text(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and (not isinstance(value, str) or not value):
        _refuse_value(f"{name} is a text, not {value!r:.40}")
    return value


def _parse_files(value: Any) -> int:
    files = coercion.coerce_integer(_FILES if value is None else value)
    if files is None or not 1 <= files <= FILES_MAX:
        _refuse_value(f"files_per_batch is {value!r:.40}: it is a number from 1 to {FILES_MAX}")
    return files


def _parse_watermark(value: Any) -> Watermark | None:
    if value is None:
        return None
    if not isinstance(value, Mapping) or value.keys() != {"column", "delay"}:
        _refuse_value("watermark is {column: at, delay: 10m}")
    delay_s = coercion.coerce_duration_s(value["delay"])
    if not isinstance(value["column"], str) or delay_s is None or delay_s < 0:
        _refuse_value("watermark is {column: at, delay: 10m}")
    return Watermark(column=value["column"], delay_s=float(delay_s))


def _refuse_value(text: str) -> NoReturn:
    raise StreamInvalid(text)
