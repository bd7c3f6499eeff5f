"""The data that steps touch, read from the text of a playbook: statements, tables, addresses."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import SplitResult, urlsplit

import msgspec

from noetl_contracts.openlineage import Dataset, StepData
from noetl_playbook.model.coercion import is_template
from noetl_playbook.model.playbook import Playbook, Step, Task
from noetl_playbook.templates.expressions import TemplateError, compile_value

STATEMENT_CHARACTERS_MAX = 20_000
_DIALECTS = {"postgres": "postgres", "duckdb": "duckdb", "spark": "spark"}
_STATEMENT_FIELDS = ("query", "sql")
_READING_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
# A credential's fields are not known here: its name stands for the server that it leads to.
_DATABASE_SCHEME = "postgres://"


def list_step_data(playbook: Playbook) -> dict[str, StepData]:
    """Say of every step what its text tells about the data that it touches."""
    names = frozenset(step.step for step in playbook.workflow)
    return {step.step: _describe_step_data(step, names) for step in playbook.workflow}


def _describe_step_data(step: Step, names: frozenset[str]) -> StepData:
    reads: dict[Dataset, None] = {}
    writes: dict[Dataset, None] = {}
    for task in step.tool:
        reads.update(dict.fromkeys(_list_reads(task)))
        writes.update(dict.fromkeys(_list_writes(task)))
    statements = list(_list_statements(step))
    dialects = {_DIALECTS[task.kind] for task in step.tool if task.kind in _DIALECTS}
    if step.loop is not None and step.loop.cursor is not None:
        dialects.add(step.loop.cursor.kind)
    return StepData(
        kind=step.tool[-1].kind if step.tool else "",
        uses=tuple(sorted(_list_names(msgspec.to_builtins(step)) & names - {step.step})),
        reads=tuple(sorted(reads)),
        writes=tuple(sorted(writes)),
        statements=tuple(statements),
        dialect=dialects.pop() if len(dialects) == 1 and statements else None,
    )


def _list_statements(step: Step) -> Iterator[str]:
    """Yield SQL as it was written; of what lies elsewhere, as in a script, there is no text."""
    if step.loop is not None and step.loop.cursor is not None:
        yield step.loop.cursor.claim.strip()[:STATEMENT_CHARACTERS_MAX]
    for task in step.tool:
        blocks = [task.fields] if task.kind in _DIALECTS else []
        if task.kind == "transfer":
            blocks = [
                side_block
                for side in ("source", "target")
                if (side_block := _find_block(task, side))
            ]
        for block in blocks:
            for name in _STATEMENT_FIELDS:
                yield from _list_texts(block.get(name))


def _list_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str) and value.strip():
        yield value.strip()[:STATEMENT_CHARACTERS_MAX]
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _list_texts(item)


def _list_reads(task: Task) -> Iterator[Dataset]:
    if task.kind == "http" and _http_method(task) in _READING_METHODS:
        yield from _list_address(task.fields.get("url"))
    elif task.kind == "transfer":
        yield from _list_transfer_end(_find_block(task, "source"))
    elif task.kind == "artifact" and task.fields.get("action") == "get":
        yield from _list_address(task.fields.get("uri"))


def _list_writes(task: Task) -> Iterator[Dataset]:
    if task.kind == "http" and _http_method(task) not in _READING_METHODS:
        yield from _list_address(task.fields.get("url"))
    elif task.kind == "transfer":
        yield from _list_transfer_end(_find_block(task, "target"))
    elif task.kind == "artifact" and task.fields.get("action") == "put":
        yield from _list_address(task.fields.get("uri"))


def _list_transfer_end(block: dict[str, Any]) -> Iterator[Dataset]:
    """Name the end of a transfer: a table, a file, or an address."""
    match block.get("type"):
        case "postgres":
            table, auth = block.get("table"), block.get("auth")
            if _is_plain_text(table) and _is_plain_text(auth):
                yield Dataset(namespace=f"{_DATABASE_SCHEME}{auth}", name=str(table))
        case "duckdb":
            table, database = block.get("table"), block.get("database")
            if _is_plain_text(table):
                place = f":{database}" if _is_plain_text(database) else ""
                yield Dataset(namespace=f"duckdb{place}", name=str(table))
        case "file":
            yield from _list_address(block.get("uri"))
        case "http":
            yield from _list_address(block.get("url"))
        case _:
            return


def _list_address(value: Any) -> Iterator[Dataset]:
    """Name an address without what may be secret in it: user, query and fragment."""
    if not _is_plain_text(value):
        return
    try:
        parts = urlsplit(str(value))
        namespace = _address_namespace(parts)
    except ValueError:
        return
    name = parts.path.lstrip("/") if parts.hostname else parts.path
    yield Dataset(namespace=namespace, name=name or "/")


def _address_namespace(parts: SplitResult) -> str:
    """Name the place of an address; raises `ValueError` for a port that is none."""
    if not parts.hostname:
        return "file"
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}"


def _http_method(task: Task) -> str:
    method = task.fields.get("method", "GET")
    return method.upper() if _is_plain_text(method) else "POST"


def _find_block(task: Task, side: str) -> dict[str, Any]:
    block = task.fields.get(side)
    return block if isinstance(block, dict) else {}


def _is_plain_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and not is_template(value)


def _list_names(value: Any) -> set[str]:
    if isinstance(value, dict | list | tuple):
        items = value.values() if isinstance(value, dict) else value
        return {name for item in items for name in _list_names(item)}
    if not is_template(value):
        return set()
    try:
        return set(compile_value(value).names)
    except TemplateError:
        return set()
