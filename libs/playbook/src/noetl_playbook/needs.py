"""What the steps of a playbook need to run: tools, credentials, keychain entries, playbooks."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from noetl_playbook.coercion import is_template
from noetl_playbook.expressions import TemplateError, compile_value
from noetl_playbook.given import known
from noetl_playbook.model import Playbook, Step, Task


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """What one step needs, by name; what only the run decides stands as its template."""

    tools: tuple[str, ...]
    credentials: tuple[str, ...]
    keychain: tuple[str, ...]
    playbooks: tuple[str, ...]


def of_step(playbook: Playbook, step: Step, workload: Mapping[str, Any]) -> Needs:
    """Gather what a step needs."""
    tasks = [_whole(playbook, task) for task in step.tool]
    entries = {entry.name for entry in playbook.keychain}
    named = {name for task in tasks for name in _of_task(task, workload)}
    if step.loop is not None and step.loop.cursor is not None:
        named |= set(_of_auth(step.loop.cursor.auth, workload))
    if step.output is not None and step.output.store.credential is not None:
        named |= {_text(step.output.store.credential, workload)}
    mentioned = _mentioned(msgspec.to_builtins(step)) | {
        name for task in tasks for name in _mentioned(msgspec.to_builtins(task))
    }
    children = {
        _text(task.fields["path"], workload)
        for task in tasks
        if task.kind == "playbook"
        if "path" in task.fields
    }
    return Needs(
        tools=tuple(dict.fromkeys(task.kind for task in tasks)),
        credentials=tuple(sorted(named - entries)),
        keychain=tuple(sorted(mentioned | (named & entries))),
        playbooks=tuple(sorted(children)),
    )


def of_keychain(playbook: Playbook, workload: Mapping[str, Any]) -> tuple[str, ...]:
    """Name the credentials that the keychain's entries are made from."""
    found: set[str] = set()
    for entry in playbook.keychain:
        found |= set(_of_auth(entry.fields.get("auth"), workload))
        if entry.kind in ("credential", "postgres_credential"):
            found.add(_text(entry.fields.get("credential", entry.name), workload))
    return tuple(sorted(found))


def _whole(playbook: Playbook, task: Task) -> Task:
    """Put a workbook call on the entry that it calls."""
    if task.kind != "workbook":
        return task
    name = task.fields.get("task", task.name)
    entry = next((each.tool for each in playbook.workbook if each.name == name), None)
    if entry is None:
        return task
    auth = entry.auth if task.auth is None else task.auth
    return msgspec.structs.replace(entry, fields={**entry.fields, **task.fields}, auth=auth)


def _of_task(task: Task, workload: Mapping[str, Any]) -> Iterator[str]:
    yield from _of_auth(task.auth, workload)
    for side in ("source", "target"):
        block = task.fields.get(side)
        if isinstance(block, dict):
            yield from _of_auth(block.get("auth"), workload)
    inputs = task.fields.get("inputs")
    for source in inputs.values() if isinstance(inputs, dict) else ():
        if isinstance(source, dict):
            yield from _of_auth(source.get("auth"), workload)
    if task.output is not None and task.output.store.credential is not None:
        yield _text(task.output.store.credential, workload)


def _of_auth(auth: Any, workload: Mapping[str, Any]) -> Iterator[str]:
    """Name the stored credentials of an `auth` in any form."""
    if isinstance(auth, str):
        yield _text(auth, workload)
        return
    if not isinstance(auth, dict):
        return
    for key in ("credential", "key"):
        if isinstance(auth.get(key), str):
            yield _text(auth[key], workload)
            return
    for inner in auth.values():
        if isinstance(inner, dict):
            yield from _of_auth(inner, workload)


def _text(value: Any, workload: Mapping[str, Any]) -> str:
    found = known(value, workload)
    return found if isinstance(found, str) else str(value)


def _mentioned(value: Any) -> set[str]:
    """Name the keychain entries that templates read."""
    if isinstance(value, dict | list | tuple):
        items = value.values() if isinstance(value, dict) else value
        return {name for item in items for name in _mentioned(item)}
    if not is_template(value):
        return set()
    try:
        paths = compile_value(value).paths
    except TemplateError:
        return set()
    parts = (path.split(".") for path in paths)
    return {each[1] for each in parts if each[0] == "keychain" and len(each) > 1}
