"""Checks of Spark tasks of mode `stream`: what their batches can read, run and write."""

from typing import Any

from noetl_playbook.model import datasets, streams
from noetl_playbook.model.coercion import is_template
from noetl_playbook.model.playbook import Playbook, Step, Task
from noetl_playbook.source.document_reader import DocumentReader, list_step_paths
from noetl_playbook.source.problems import Path

_KIND, _STREAM, _BATCH = "spark", "stream", "batch"
_ORGANIZATION = "noetl://files/"


def check_stream_modes(reading: DocumentReader, playbook: Playbook) -> None:
    """Report tasks that cannot follow what arrives."""
    for path, step in list_step_paths(reading, playbook):
        for place, task in zip(reading.list_tasks(path), step.tool, strict=False):
            if task.kind == _KIND:
                _check_task(reading, step, task, place.path)


def _check_task(reading: DocumentReader, step: Step, task: Task, path: Path) -> None:
    mode, follow = task.fields.get("mode"), task.fields.get("follow")
    if is_template(mode):
        return
    if mode != _STREAM:
        _check_table(reading, task, path)
        if follow is not None and mode in (None, _BATCH):
            text = "'follow' belongs to mode: stream"
            reading.report_problem("E403", (*path, "follow"), text, of_key=True)
        return
    if follow is None:
        text = "mode stream needs follow: {checkpoint: orders, trigger: 10s}"
        reading.report_problem("E403", (*path, "mode"), text)
    if task.fields.get("code") is not None:
        text = "mode stream takes 'sql': code runs in mode batch"
        reading.report_problem("E403", (*path, "code"), text, of_key=True)
    if step.loop is not None:
        text = "a stream stands in a step without a loop: it has a checkpoint of its own"
        reading.report_problem("E403", (*path, "mode"), text)
    if task.stream is not None:
        text = "'stream' hands rows to another step, and mode stream writes them into 'output'"
        reading.report_problem("E403", (*path, "stream"), text, of_key=True)
    _check_arriving(reading, task, follow, path)
    _check_sink(reading, task, path)


def _check_table(reading: DocumentReader, task: Task, path: Path) -> None:
    """Report a table of PostgreSQL that no batches go to."""
    sink = None if task.output is None else task.output.sink
    if isinstance(sink, dict) and datasets.TABLE in sink:
        reading.report_problem("E403", (*path, "output", "sink", datasets.TABLE), streams.NO_TABLE)


def _check_sink(reading: DocumentReader, task: Task, path: Path) -> None:
    sink = None if task.output is None else task.output.sink
    if not isinstance(sink, dict):
        text = (
            "mode stream writes its batches: name output.path, output.delta, output.iceberg or "
            "output.table"
        )
        reading.report_problem("E403", path, text)
        return
    mode = sink.get("mode") or "error"
    # What a table takes is told with its description.
    if datasets.TABLE in sink:
        return
    if mode not in streams.OUTPUT_MODES and not is_template(mode):
        text = (
            f"output.mode is {mode}: each batch of a stream adds to what is there, so choose "
            f"{', '.join(streams.OUTPUT_MODES)}"
        )
        reading.report_problem("E104", (*path, "output", "sink", "mode"), text)


def _check_arriving(reading: DocumentReader, task: Task, follow: Any, path: Path) -> None:
    """Report an input that cannot arrive, or that nobody can tell from the others."""
    inputs = task.fields.get("inputs")
    name = follow.get("input") if isinstance(follow, dict) else None
    if not isinstance(inputs, dict) or is_template(name):
        if inputs is None:
            text = "mode stream needs 'inputs': the path where files arrive"
            reading.report_problem("E403", path, text)
        return
    if name is None and len(inputs) == 1:
        (name,) = inputs
    if name not in inputs:
        text = f"follow.input names the input that arrives, one of {', '.join(map(str, inputs))}"
        reading.report_problem("E104", (*path, "follow"), text)
        return
    if not is_template(inputs[name]):
        _check_source(reading, inputs[name], (*path, "inputs", str(name)))


def _check_source(reading: DocumentReader, source: Any, place: Path) -> None:
    """Report an input whose rows cannot arrive, as far as it is written out."""
    at = source.get("path") if isinstance(source, dict) else None
    if at is None:
        text = (
            "a stream reads files that arrive at a 'path'; lake tables, queries and results are "
            "inputs beside it"
        )
        reading.report_problem("E104", place, text)
        return
    is_arriving = datasets.is_bucket_path(str(at)) or str(at).startswith(_ORGANIZATION)
    if not is_template(at) and not is_arriving:
        text = (
            "files of an execution do not arrive, they are there: stream from s3://bucket/folder/ "
            "or noetl://files/folder/"
        )
        reading.report_problem("E104", (*place, "path"), text)
    if source.get("expect") is not None:
        text = "rows of a stream are checked as they are written: put 'expect' into output"
        reading.report_problem("E104", (*place, "expect"), text, of_key=True)
