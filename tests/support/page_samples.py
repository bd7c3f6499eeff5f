"""Samples of documentation pages: their blocks, and the playbook that a block is a part of."""

import json
import re
from pathlib import Path
from typing import Any

from msgspec import Struct

from noetl_playbook.source import yaml_document

# Blocks of this title are values of a chart, and none of a playbook.
VALUES_TITLE = "values.yaml"
_BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_OTHER_YAML = {VALUES_TITLE, "pod.yaml"}
_HEAD = {"apiVersion": "noetl.io/v2", "kind": "Playbook", "metadata": {"name": "sample"}}
_ROOT_KEYS = {
    *("metadata", "executor", "workload", "inputs", "keychain", "workbook", "workflow", "vars")
}
_RULE_KEYS = {"when", "then", "else"}
_NOOP = {"kind": "noop"}


class Sample(Struct, frozen=True, kw_only=True):
    """One block: `text` is what is in it, `line` where it begins in the page, from 1."""

    page: Path
    line: int
    title: str
    text: str

    @property
    def is_whole(self) -> bool:
        """Whether the block is a playbook by itself."""
        return "apiVersion:" in self.text


def list_samples(page: Path) -> list[Sample]:
    """List the YAML blocks of a page that are a part of a playbook."""
    return [sample for sample in list_blocks(page, "yaml") if sample.title not in _OTHER_YAML]


def list_blocks(page: Path, language: str) -> list[Sample]:
    """List the blocks of a page in one language."""
    text = page.read_text("utf-8")
    return [
        Sample(
            page=page,
            line=text.count("\n", 0, found.start()) + 1,
            title=found[2] or "",
            text=found[3],
        )
        for found in _BLOCK.finditer(text)
        if found[1] == language
    ]


def complete_playbook(text: str) -> str:
    """Put a part of a playbook where it belongs in a whole one.

    A part is a whole document, root sections, a list of steps, a step, keys of a step, a list of
    policy rules, a rule, or a task. Raises `ValueError` for another list, `TypeError` for a scalar.
    """
    value = yaml_document.read_document(text).value
    if isinstance(value, dict) and "apiVersion" in value:
        return text
    return json.dumps({**_HEAD, **_sections_around(value)})


def _sections_around(value: Any) -> dict[str, Any]:
    if isinstance(value, list):
        return _sections_around_list(value)
    if not isinstance(value, dict):
        raise TypeError(f"no part of a playbook: {value!r}")
    if value.keys() <= _ROOT_KEYS:
        return {**value, "workflow": value.get("workflow", [{"step": "start", "tool": _NOOP}])}
    if value.keys() <= _RULE_KEYS:
        return _sections_around_rules([value])
    if "kind" in value:
        return _workflow([{"step": "sample", "tool": value}])
    return _workflow([{"step": "sample", **({} if "tool" in value else {"tool": _NOOP}), **value}])


def _sections_around_list(values: list[Any]) -> dict[str, Any]:
    if all(isinstance(value, dict) and "step" in value for value in values):
        return _workflow(values)
    if all(isinstance(value, dict) and value.keys() <= _RULE_KEYS for value in values):
        return _sections_around_rules(values)
    if all(isinstance(value, dict) and "kind" in value for value in values):
        return _workflow([{"step": "sample", "tool": values}])
    raise ValueError(f"no list of steps, tasks or rules: {values!r}")


def _sections_around_rules(rules: list[Any]) -> dict[str, Any]:
    task = {**_NOOP, "name": "sample_task", "spec": {"policy": {"rules": rules}}}
    return _workflow([{"step": "sample", "tool": [task]}])


def _workflow(steps: list[Any]) -> dict[str, Any]:
    """Add the steps that the sample names and leaves out."""
    present = {step["step"] for step in steps}
    absent = dict.fromkeys(name for step in steps for name in _named_steps(step))
    added = [{"step": name, "tool": _NOOP} for name in absent if name not in present]
    return {"workflow": [*steps, *added]}


def _named_steps(step: dict[str, Any]) -> list[str]:
    following = step.get("next") or []
    arcs = following.get("arcs", []) if isinstance(following, dict) else following
    arcs = [arcs] if isinstance(arcs, str) else arcs
    return [arc if isinstance(arc, str) else arc["step"] for arc in arcs]
