"""Which inputs a playbook has, and what is said of one that it has not."""

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec

from noetl_contracts import spelling
from noetl_contracts.requests import workload_keys
from noetl_playbook.model import language_names
from noetl_playbook.model.playbook import Playbook
from noetl_playbook.model.tools import NESTED_FIELDS
from noetl_playbook.templates import input_reads
from noetl_playbook.templates.input_reads import WHOLE_NAMES, InputRead, Keys
from noetl_playbook.templates.sandbox import GLOBALS
from noetl_playbook.templates.syntax import TemplateTree

_SHOWN_MAX = 20
_SHOWN_CHARACTERS_MAX = 80
# What stands for something else wherever it is read.
_RESERVED_NAMES = (
    language_names.FIXED_NAMES
    | language_names.LAST_NAMES
    | language_names.GLOBAL_NAMES
    | {*GLOBALS, language_names.SEAL}
)


class InputFault(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs that a playbook does not have; `hint` says the way out.

    Where it `is_refused`, a name is so near one of the playbook's that it was mistyped. Others are
    only told: callers may hand the same inputs to many playbooks.
    """

    message: str
    hint: str
    is_refused: bool

    @property
    def full_text(self) -> str:
        """Say all of it in one line."""
        return f"{self.message} ({self.hint})"


class _UnknownInput(msgspec.Struct, frozen=True, kw_only=True):
    """A key that is given at a place where the playbook has others."""

    keys: Keys
    declared: list[str]
    read_names: list[str]
    near: str | None
    is_slip: bool


def find_input_fault(
    workload: Mapping[str, Any], reads: Sequence[Sequence[str]] | None, fields: Mapping[str, Any]
) -> InputFault | None:
    """Judge the names of the inputs that are given to a playbook.

    An input must stand in the playbook's `workload`, or something must read it: `reads` are the
    paths of all that is read, the empty one stands for every input. Below a mapping of the
    workload, which a given mapping is merged into, only a mistyped key is told. Where `reads`
    is None every input is accepted; so is the one that a schedule's firing brings.
    """
    if reads is None or () in map(tuple, reads):
        return None
    unknown = list(_find_unknown_inputs(workload, [tuple(path) for path in reads], fields, at=()))
    return _build_fault(unknown) if unknown else None


def find_model_input_fault(
    model: Mapping[str, Any], fields: Mapping[str, Any]
) -> InputFault | None:
    """Judge inputs by the canonical form of a playbook, as the catalog holds it."""
    known_inputs = {**dict.fromkeys(model.get("declared_inputs", ())), **model.get("workload", {})}
    fault = find_input_fault(known_inputs, model.get("inputs"), fields)
    if fault is None or not is_lenient(model):
        return fault
    return msgspec.structs.replace(fault, is_refused=False)


def is_lenient(model: Mapping[str, Any]) -> bool:
    """Tell whether a playbook takes undefined names leniently, and only warns of inputs."""
    return bool(model.get("executor", {}).get("spec", {}).get("undefined") != "strict")


def _find_unknown_inputs(
    declared: Mapping[str, Any], reads: list[Keys], fields: Mapping[str, Any], *, at: Keys
) -> Iterator[_UnknownInput]:
    for key, value in fields.items():
        keys = (*at, key)
        if key in declared:
            below = declared[key]
            if isinstance(below, Mapping) and isinstance(value, Mapping):
                yield from _find_unknown_inputs(below, reads, value, at=keys)
            continue
        if any(_is_prefix(path, keys) or _is_prefix(keys, path) for path in reads):
            continue
        if not at and key == workload_keys.SCHEDULE:
            continue
        read_here = {path[len(at)] for path in reads if _is_prefix(at, path) and path != at}
        nearest_key = spelling.find_nearest_word(key, {*declared, *read_here})
        is_slip = nearest_key is not None and spelling.is_spelling_slip(key, nearest_key)
        if not at or is_slip:
            yield _UnknownInput(
                keys=keys,
                declared=sorted(declared),
                read_names=sorted(read_here),
                near=nearest_key,
                is_slip=is_slip,
            )


def _is_prefix(path: Keys, of: Keys) -> bool:
    return of[: len(path)] == path


def _build_fault(unknown: list[_UnknownInput]) -> InputFault:
    first = min(
        unknown, key=lambda unknown_input: (not unknown_input.is_slip, unknown_input.near is None)
    )
    word = "input" if len(unknown) == 1 else "inputs"
    names_text = _join_words(
        [repr(".".join(item.keys)[:_SHOWN_CHARACTERS_MAX]) for item in unknown]
    )
    place = repr(".".join(first.keys[:-1])) if first.keys[1:] else "its workload"
    reads_text = f"it reads {_join_words(first.read_names) or 'none'}"
    if first.declared:
        reads_text = f"{place} has {_join_words(first.declared)}"
    nearest_path = ".".join((*first.keys[:-1], first.near or ""))
    suggestion = "" if first.near is None else f"did you mean {nearest_path!r}? otherwise "
    return InputFault(
        message=f"the playbook has no {word} {names_text}; {reads_text}",
        hint=f"{suggestion}declare it under workload in the playbook, or leave it out",
        is_refused=first.is_slip,
    )


def _join_words(words: list[str]) -> str:
    unshown_count = len(words) - _SHOWN_MAX
    return ", ".join(words[:_SHOWN_MAX]) + (
        f" and {unshown_count} more" if unshown_count > 0 else ""
    )


def record_input_paths(playbook: Playbook, trees: Iterable[TemplateTree]) -> Playbook:
    """Write into a playbook the paths of inputs that it reads; `trees` are all its templates.

    The empty path stands for all inputs. A model that was stored without paths takes every input.
    """
    codes = [input_reads.find_code_reads(code) for code in _list_python_codes(playbook)]
    reads = chain(*map(input_reads.find_template_reads, trees), *codes)
    steps = {step.step for step in playbook.workflow}
    paths = {
        path for input_read in reads if (path := _find_input_path(input_read, steps)) is not None
    }
    return msgspec.structs.replace(playbook, inputs=tuple(_drop_longer_paths(paths)))


def _find_input_path(input_read: InputRead, steps: set[str]) -> Keys | None:
    """Find the input that is read; a bare name is one unless it always means something else."""
    if input_read.root in WHOLE_NAMES:
        return input_read.keys
    return (
        None
        if input_read.root in _RESERVED_NAMES or input_read.root in steps
        else (input_read.root, *input_read.keys)
    )


def _drop_longer_paths(paths: Iterable[Keys]) -> Iterator[Keys]:
    """Leave out the paths below others: who reads a value reads all of it."""
    latest: Keys | None = None
    for path in sorted(paths):
        if latest is None or not _is_prefix(latest, path):
            latest = path
            yield path


def _list_python_codes(playbook: Playbook) -> Iterator[str | None]:
    """List the codes of python tasks; None stands for one that is not at hand."""
    tasks = [task for step in playbook.workflow for task in step.tool]
    tasks += [entry.tool for entry in playbook.workbook]
    for task in tasks:
        if task.kind == "python":
            yield _find_code(task.fields)
        for key in NESTED_FIELDS:
            nested = task.fields.get(key)
            if isinstance(nested, dict) and nested.get("kind") == "python":
                yield _find_code(nested)


def _find_code(fields: Mapping[str, Any]) -> str | None:
    script = fields.get("script")
    source = script.get("source") if isinstance(script, dict) else None
    encoded = source.get("code_b64") if isinstance(source, dict) else fields.get("code_b64")
    if encoded is not None:
        return _decode_code(encoded)
    code = fields.get("code")
    return code if script is None and isinstance(code, str) else None


def _decode_code(encoded: Any) -> str | None:
    try:
        return base64.b64decode(encoded, validate=True).decode()
    except (TypeError, ValueError, binascii.Error):
        return None
