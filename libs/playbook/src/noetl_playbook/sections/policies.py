"""Reads rules, actions, `set` blocks, outputs and assertions."""

from collections.abc import Mapping
from typing import Any, Literal

from noetl_contracts.payloads import COLLECTED_BYTES_MAX
from noetl_playbook.model import language_names
from noetl_playbook.model.playbook import (
    Accumulate,
    Action,
    AdmitRule,
    Allow,
    Output,
    Rule,
    Selection,
)
from noetl_playbook.sections.datasets import gather_sink
from noetl_playbook.source.document_reader import DocumentReader
from noetl_playbook.source.problems import Path, write_fragment

SetScope = Literal["task", "rule", "step"]

OLDER_WHEN = ("expr", "cond", "condition")
OLDER_SETS = {"set_ctx": "ctx.", "set_iter": "iter.", "set_vars": "ctx."}


def read_set_block(
    reading: DocumentReader, value: Any, path: Path, *, scope: SetScope
) -> dict[str, Any]:
    """Read a `set` block; keys become `ctx.x`, `iter.x`, or bare for a pipeline variable."""
    set_block: dict[str, Any] = {}
    for key, item in (reading.read_mapping(value, path) or {}).items():
        target = language_names.split_target(key)
        if target is None:
            reading.report_problem(
                "E201",
                (*path, key),
                f"'{key}' is not a variable name",
                hint="write ctx.name, iter.name or name",
                of_key=True,
            )
            continue
        prefix, name = target
        if prefix == "iter" and scope == "step":
            reading.report_problem(
                "E304", (*path, key), "iter can be set in tasks and rules only", of_key=True
            )
        reading.add_templates(item, (*path, key))
        if prefix != "iter":
            first = name.split(".")[0]
            reading.variables.append(((*path, key), first, f"ctx.{first}"))
        if prefix is None and scope == "task":
            set_block[name] = item
        else:
            set_block[f"{'iter' if prefix == 'iter' else 'ctx'}.{name}"] = item
    return set_block


def gather_sets(
    reading: DocumentReader,
    raw: dict[str, Any],
    path: Path,
    *,
    prefixes: Mapping[str, str] = OLDER_SETS,
) -> dict[str, Any]:
    """Fold the older blocks of variables, each with the prefix of its scope, into `set`."""
    older = [key for key in prefixes if key in raw]
    if not older:
        return raw
    fields = {key: item for key, item in raw.items() if key not in older}
    block = dict(reading.read_mapping(raw.get("set"), (*path, "set")) or {})
    for key in older:
        prefix = prefixes[key]
        writes: dict[str, Any] = {}
        for name, item in (reading.read_mapping(raw[key], (*path, key)) or {}).items():
            target = name if name.startswith(("ctx.", "iter.")) else f"{prefix}{name}"
            writes[target] = item
            reading.record_move((*path, key, name), (*path, "set", target))
        reading.report_problem(
            "W902",
            (*path, key),
            f"'{key}' is an older form",
            of_key=True,
            replacement=write_fragment("set", writes),
        )
        block = {**writes, **block}
    return {**fields, "set": block}


def read_action(reading: DocumentReader, value: Any, path: Path) -> Action | None:
    """Read what a rule does."""
    raw = reading.read_mapping(value, path)
    if raw is None:
        return None
    raw = gather_sets(reading, raw, path)
    fields = reading.read_fields(Action, raw, path, other=("set",))
    fields["set"] = read_set_block(reading, raw.get("set"), (*path, "set"), scope="rule")
    action: Action | None = reading.build_struct(Action, fields, path)
    if action is not None:
        reading.actions.append((path, action))
    if action is not None and action.do == "jump" and action.to is None:
        reading.report_problem("E104", path, "a jump needs 'to'", hint="name a task of this step")
    return action


def rename_older_when(reading: DocumentReader, raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """Spell `expr`, `cond` and `condition` as `when`."""
    for older in OLDER_WHEN:
        if older in raw and "when" not in raw:
            reading.report_problem(
                "W902",
                (*path, older),
                f"'{older}' is an older form",
                of_key=True,
                replacement=write_fragment("when", raw[older]),
            )
            reading.record_move((*path, older), (*path, "when"))
            return {("when" if key == older else key): item for key, item in raw.items()}
    return raw


def _split_rule(
    reading: DocumentReader, value: Any, path: Path
) -> tuple[str | bool | None, Any, Path] | None:
    """Take a rule apart into its condition (`None` is else) and its unread consequence."""
    raw = reading.read_mapping(value, path)
    if raw is None:
        return None
    raw = rename_older_when(reading, raw, path)
    for key in raw:
        if key not in ("when", "then", "else"):
            reading.report_unknown((*path, key), ("when", "then", "else"))
    if "when" in raw:
        when = reading.read_condition(raw["when"], (*path, "when"))
        if "else" in raw:
            reading.report_problem("E104", (*path, "else"), "a rule has either 'when' or 'else'")
        return (True if when is None else when), raw.get("then"), (*path, "then")
    if "else" not in raw:
        reading.report_problem("E104", path, "a rule needs 'when' or 'else'")
        return None
    inner = raw["else"]
    if inner is None:
        return None, raw.get("then"), (*path, "then")
    if isinstance(inner, dict) and set(inner) == {"then"}:
        return None, inner["then"], (*path, "else", "then")
    return None, inner, (*path, "else")


def read_task_rule(reading: DocumentReader, value: Any, path: Path) -> Rule | None:
    """Read one rule of a task's policy, in any of its spellings."""
    split = _split_rule(reading, value, path)
    if split is None:
        return None
    when, then, then_path = split
    action = read_action(reading, then, then_path)
    return None if action is None else Rule(when=when, then=action)


def read_admit_rule(reading: DocumentReader, value: Any, path: Path) -> AdmitRule | None:
    """Read one admission rule."""
    split = _split_rule(reading, value, path)
    if split is None:
        return None
    when, then, then_path = split
    allow: Allow | None = reading.read_struct(Allow, then, then_path)
    return None if allow is None else AdmitRule(when=when, then=allow)


def read_rules(reading: DocumentReader, value: Any, path: Path) -> tuple[Rule, ...]:
    """Read a list of rules."""
    items = reading.read_list(value, path)
    optional_rules = (read_task_rule(reading, item, (*path, i)) for i, item in enumerate(items))
    return tuple(rule for rule in optional_rules if rule is not None)


def read_selection(reading: DocumentReader, value: Any, path: Path) -> Selection | None:
    """Read a selected field; text alone is its path."""
    raw = {"path": value} if isinstance(value, str) else reading.read_mapping(value, path)
    if raw is None:
        return None
    if isinstance(raw.get("path"), str):
        dotted = raw["path"].removeprefix("$").removeprefix(".")
        last = dotted.rsplit(".", 1)[-1].split("[", 1)[0]
        raw = {"as": last, **raw, "path": dotted}
    selection: Selection | None = reading.read_struct(Selection, raw, path)
    return selection


def read_output(
    reading: DocumentReader, raw: dict[str, Any], path: Path, *, kind: str | None = None
) -> Output | None:
    """Read `output` and `output_select` of a step, or of a task of a `kind`."""
    block = dict(reading.read_mapping(raw.get("output"), (*path, "output")) or {})
    block = gather_sink(reading, block, (*path, "output"), kind=kind)
    if "output_select" in block:
        reading.record_move((*path, "output", "output_select"), (*path, "output_select"))
    short = block.pop("output_select", raw.get("output_select"))
    if isinstance(short, dict):
        if "threshold_kb" in short and "inline_max_bytes" not in block:
            reading.record_move(
                (*path, "output_select", "threshold_kb"), (*path, "output", "inline_max_bytes")
            )
            kb = short["threshold_kb"]
            block["inline_max_bytes"] = kb * 1024 if isinstance(kb, int) else kb
    elif short is not None:
        reading.record_move((*path, "output_select"), (*path, "output", "select"))
        block["select"] = [
            *reading.read_list(block.get("select"), path),
            *reading.read_list(short, (*path, "output_select")),
        ]
    if not block:
        return None
    output: Output | None = reading.read_struct(Output, block, (*path, "output"))
    return output


def read_accumulate(reading: DocumentReader, value: Any, path: Path) -> Accumulate | None:
    """Read what is collected over repeated runs; `true` takes every default."""
    if value is True:
        return Accumulate()
    accumulate: Accumulate | None = reading.read_struct(Accumulate, value, path)
    if accumulate is not None and accumulate.max_items is not None and accumulate.max_items < 0:
        reading.report_problem("E104", (*path, "max_items"), "max_items is at least 0")
    if accumulate is not None and not 1 <= accumulate.max_bytes <= COLLECTED_BYTES_MAX:
        text = f"max_bytes is between 1 and {COLLECTED_BYTES_MAX}"
        reading.report_problem("E104", (*path, "max_bytes"), text)
    if accumulate is not None and not language_names.is_identifier(accumulate.manifest_as):
        reading.report_problem(
            "E201", (*path, "manifest_as"), f"'{accumulate.manifest_as}' is not a variable name"
        )
    return accumulate
