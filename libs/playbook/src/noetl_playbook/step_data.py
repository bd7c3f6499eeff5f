"""The data that steps touch, read from the text of a playbook: statements, tables, addresses."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from noetl_contracts.openlineage import Dataset, StepData
from noetl_playbook.data_places import (
    DATABASE_SCHEME,
    is_plain_text,
    list_address,
    list_described,
)
from noetl_playbook.model.coercion import is_template
from noetl_playbook.model.playbook import Playbook, Step, Task
from noetl_playbook.templates.expressions import TemplateError, compile_value

STATEMENT_CHARACTERS_MAX = 20_000
_DIALECTS = {"postgres": "postgres", "duckdb": "duckdb", "spark": "spark"}
# Kinds whose inputs and outputs are datasets.
_DATASET_KINDS = ("spark", "duckdb", "postgres")
_STATEMENT_FIELDS = ("query", "sql")
_READING_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


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
        # The reports of a step are those of its last task.
        checked=_list_checked(step.tool[-1]) if step.tool else {},
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
        yield from list_address(task.fields.get("url"))
    elif task.kind == "transfer":
        yield from _list_transfer_end(_find_block(task, "source"))
    elif task.kind in _DATASET_KINDS:
        yield from _name_inputs(task).values()
    elif task.kind == "artifact" and task.fields.get("action") == "get":
        yield from list_address(task.fields.get("uri"))


def _list_writes(task: Task) -> Iterator[Dataset]:
    if task.kind == "http" and _http_method(task) not in _READING_METHODS:
        yield from list_address(task.fields.get("url"))
    elif task.kind == "transfer":
        yield from _list_transfer_end(_find_block(task, "target"))
    elif task.kind in _DATASET_KINDS:
        yield from list_described(_find_sink(task))
    elif task.kind == "artifact" and task.fields.get("action") == "put":
        yield from list_address(task.fields.get("uri"))


def _name_inputs(task: Task) -> dict[str, Dataset]:
    """Return the inputs of a task that are datasets or tables, by their names."""
    return {
        str(name): dataset
        for name, source in _find_block(task, "inputs").items()
        if isinstance(source, dict) and "rows" not in source
        for dataset in list_described(source)
    }


def _list_checked(task: Task) -> dict[str, Dataset]:
    """Return the datasets of a task by the names that reports of their checks have."""
    checked = {f"input '{name}'": dataset for name, dataset in _name_inputs(task).items()}
    checked.update(("output", dataset) for dataset in list_described(_find_sink(task)))
    for side in ("source", "target") if task.kind == "transfer" else ():
        ends = _list_transfer_end(_find_block(task, side))
        checked.update((side, dataset) for dataset in ends)
    return checked


def _list_transfer_end(block: dict[str, Any]) -> Iterator[Dataset]:
    """Name the end of a transfer: a table, a file, or an address."""
    match block.get("type"):
        case "postgres":
            table, auth = block.get("table"), block.get("auth")
            if is_plain_text(table) and is_plain_text(auth):
                yield Dataset(namespace=f"{DATABASE_SCHEME}{auth}", name=str(table))
        case "duckdb":
            table, database = block.get("table"), block.get("database")
            if is_plain_text(table):
                place = f":{database}" if is_plain_text(database) else ""
                yield Dataset(namespace=f"duckdb{place}", name=str(table))
        case None | "dataset":
            yield from list_described(block)
        case "file":
            yield from list_address(block.get("uri"))
        case "http":
            yield from list_address(block.get("url"))
        case _:
            return


def _http_method(task: Task) -> str:
    method = task.fields.get("method", "GET")
    return method.upper() if is_plain_text(method) else "POST"


def _find_sink(task: Task) -> Mapping[str, Any]:
    return {} if task.output is None or task.output.sink is None else task.output.sink


def _find_block(task: Task, side: str) -> dict[str, Any]:
    block = task.fields.get(side)
    return block if isinstance(block, dict) else {}


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
