"""A step's pipeline, compiled once: its tasks, rules, actions, templates and targets."""

import re
from functools import lru_cache
from typing import Any, Literal

from msgspec import Struct, structs

from noetl_contracts import codec
from noetl_contracts.commands.waits import TIMEOUT_S_MAX
from noetl_playbook.model import coercion
from noetl_playbook.model.playbook import Action, ActionName, Output, Rule, Step, Task
from noetl_playbook.model.tools import KINDS, NESTED_FIELDS, NESTED_KINDS
from noetl_playbook.templates.conditions import Condition
from noetl_playbook.templates.expressions import CompiledTemplate, compile_condition, compile_value
from noetl_playbook.templates.repeat_bound import RepeatBound, find_repeat_bound
from noetl_playbook.views import keychain
from noetl_worker.commands.call_pacer import CompiledLimit, compile_limit
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.pipeline.output_blocks import OutputBlocks, build_output_blocks
from noetl_worker.tools.calls.call import Timeout

_SHARED = frozenset({"kind", "name", "input", "auth", "timeout", "desc"})
TIMEOUT_S_BY_KIND = {"http": 60.0, "shell": 600.0, "container": 900.0, "external": 86_400.0}
TIMEOUT_S = 3600.0
_STATE_NAMES_ALL = frozenset({"context", "ctx", "workload"})
_STATE_NAMES = re.compile(rf"\b(?:{'|'.join(sorted(_STATE_NAMES_ALL))})\b")
# What an execution says for all its steps, where a step says nothing itself.
_TIMEOUT = "timeout_s"
_INLINE_MAX = "inline_max_bytes"
# Names through which a template reaches the results of tasks that it does not name.
_RESULT_READERS = frozenset({"_prev", "results", "result", "response", "outcome", "steps"})
_FIELD_KEYS = ("fields", "input", "auth", "timeout")
_OUTPUT_READERS = frozenset({"output", "output.result", "output.response", "output.rows"})
# The tools that may leave rows in the store.
_SPREADERS = frozenset({"spark", "duckdb", "postgres"})
_SECRET_NAMES = frozenset({keychain.NAME, keychain.TOKEN})
Room = Literal["ctx", "iter", "variable"]


def read_nested_task(task: Task, which: str) -> Task | None:
    """Read a task inside an `external` one; raises `ToolFailure`."""
    raw = task.fields.get(which)
    if raw is None:
        return None
    kind = raw.get("kind") if isinstance(raw, dict) else None
    if kind not in NESTED_KINDS:
        text = f"task '{task.name}', field '{which}': a task of kind {', '.join(NESTED_KINDS)}"
        raise ToolFailure(build_error("validation", f"{text} is wanted"))
    aliases = KINDS[kind].aliases
    return Task(
        name=f"{task.name}.{which}",
        kind=kind,
        fields={aliases.get(key, key): item for key, item in raw.items() if key not in _SHARED},
        input=raw.get("input") or {},
        auth=raw.get("auth"),
        timeout=raw.get("timeout"),
    )


class WriteTarget(Struct, frozen=True, kw_only=True):
    """Where a `set` entry writes; `is_secret` when its value is made of secrets."""

    room: Room
    key: str
    path: tuple[str, ...]
    value: CompiledTemplate
    is_secret: bool = False


class CompiledAction(Struct, frozen=True, kw_only=True):
    """What a matching rule does; `to` is the position of the task jumped to."""

    do: ActionName
    attempts: CompiledTemplate
    delay: CompiledTemplate | None
    max_delay: CompiledTemplate
    message: CompiledTemplate | None
    backoff: str | None
    jitter: str | None
    to: int
    set: tuple[WriteTarget, ...]


class CompiledRule(Struct, frozen=True, kw_only=True):
    """A policy rule; without a condition it is the `else`."""

    condition: Condition | None
    action: CompiledAction

    @property
    def is_else(self) -> bool:
        """Tell whether the rule matches always."""
        return self.condition is None

    @property
    def is_retry(self) -> bool:
        """Tell whether the rule runs the task again."""
        return self.action.do == "retry"

    @property
    def needs_error(self) -> bool:
        """Tell whether the rule cannot match an attempt that has succeeded."""
        return self.condition is not None and self.condition.needs_error


class CompiledTask(Struct, frozen=True, kw_only=True):
    """A task with its templates compiled; `submit` and `cancel` are tasks of an `external` one.

    `rules_of_success` are those of its rules that may match an attempt that has succeeded. What
    it returns `is_kept` by itself where the pipeline could tell that it is stored.
    """

    name: str
    kind: str
    input: CompiledTemplate
    fields: tuple[tuple[str, CompiledTemplate], ...]
    constant_fields: dict[str, Any]
    auth: CompiledTemplate
    timeout: CompiledTemplate
    constant_timeout: Timeout | None
    default_timeout_s: float
    set: tuple[WriteTarget, ...]
    rules: tuple[CompiledRule, ...]
    rules_of_success: tuple[CompiledRule, ...]
    on_unmatched: str
    expects: tuple[str, ...]
    returns: tuple[str, ...]
    code_mentions: frozenset[str]
    is_result_unread: bool
    may_spread: bool
    shows_secrets: bool
    output: Output | None = None
    is_kept: bool = False
    bounds: tuple[RepeatBound, ...] = ()
    rate_limit: CompiledLimit | None = None
    submit: "CompiledTask | None" = None
    cancel: "CompiledTask | None" = None


class CompiledPipeline(Struct, frozen=True, kw_only=True):
    """A compiled pipeline, the step that it belongs to, and the names that it mentions."""

    step: Step
    tasks: tuple[CompiledTask, ...]
    mentions: frozenset[str]
    outputs: OutputBlocks


def compile_pipeline(definition: dict[str, Any], defaults: dict[str, Any]) -> CompiledPipeline:
    """Compile a canonical step; raises `TemplateError` or `msgspec.ValidationError`."""
    return _compile_cached(codec.encode_json(definition), codec.encode_json(defaults))


@lru_cache(maxsize=256)
def _compile_cached(definition: bytes, defaults: bytes) -> CompiledPipeline:
    default_values = codec.decode_as(defaults, dict[str, Any])
    step = codec.decode_as(definition, Step)
    timeout_s = default_values.get(_TIMEOUT)
    outputs = build_output_blocks(step, default_values.get(_INLINE_MAX))
    positions = {task.name: index for index, task in enumerate(step.tool)}
    tasks = tuple(
        structs.replace(
            _compile_task(task, step, position, positions, timeout_s),
            output=outputs.tasks[position],
            is_kept=outputs.reads_stored_fields and outputs.tasks[position] is not None,
        )
        for position, task in enumerate(step.tool)
    )
    mentions = frozenset[str]().union(*(_collect_mentions(task) for task in tasks))
    return CompiledPipeline(step=step, tasks=tasks, mentions=mentions, outputs=outputs)


def _compile_task(
    task: Task, step: Step, position: int, positions: dict[str, int], timeout_s: float | None
) -> CompiledTask:
    fields = {
        name: compile_value(value, flavour="python" if name == "code" else "text")
        for name, value in task.fields.items()
        if not (task.kind == "external" and name in NESTED_FIELDS)
    }
    if task.output is not None and task.output.sink is not None:
        fields["sink"] = compile_value(task.output.sink)
    timeout = compile_value(task.timeout)
    default_timeout_s = timeout_s or _get_default_timeout_s(task)
    rules = tuple(_compile_rule(rule, position, positions) for rule in task.rules)
    return CompiledTask(
        name=task.name,
        kind=task.kind,
        input=compile_value(task.input),
        fields=tuple(
            (name, compiled_template)
            for name, compiled_template in fields.items()
            if not compiled_template.is_constant
        ),
        constant_fields={name: item.source for name, item in fields.items() if item.is_constant},
        auth=compile_value(task.auth),
        timeout=timeout,
        constant_timeout=parse_timeout(timeout.source, default_timeout_s)
        if timeout.is_constant
        else None,
        default_timeout_s=default_timeout_s,
        set=_compile_targets(task.set, bare="variable"),
        rules=rules,
        rules_of_success=tuple(rule for rule in rules if not rule.needs_error),
        on_unmatched=task.on_unmatched,
        expects=task.assert_.expects if task.assert_ else (),
        returns=task.assert_.returns if task.assert_ else (),
        code_mentions=_find_code_mentions(task),
        is_result_unread=_is_result_unread(task, step),
        may_spread=_may_spread(task, step),
        bounds=tuple(
            repeat_bound
            for repeat_bound in map(find_repeat_bound, task.rules)
            if repeat_bound is not None
        ),
        rate_limit=compile_limit(task.rate_limit),
        submit=_compile_nested(task, "submit", step),
        cancel=_compile_nested(task, "cancel", step),
        shows_secrets=task.kind == "noop" and bool(_collect_names(fields) & _SECRET_NAMES),
    )


def _compile_nested(task: Task, which: str, step: Step) -> CompiledTask | None:
    inside = read_nested_task(task, which) if task.kind == "external" else None
    return None if inside is None else _compile_task(inside, step, 0, {}, None)


def _find_code_mentions(task: Task) -> frozenset[str]:
    """Gather the state names in a task's code; code that is not at hand may use them all."""
    if "script" in task.fields or "code_b64" in task.fields:
        return _STATE_NAMES_ALL
    return frozenset(_STATE_NAMES.findall(str(task.fields.get("code", ""))))


def _collect_names(fields: dict[str, CompiledTemplate]) -> frozenset[str]:
    return frozenset[str]().union(
        *(compiled_template.names for compiled_template in fields.values())
    )


def _is_result_unread(task: Task, step: Step) -> bool:
    """Tell whether no template can see what a task returns; its error is always seen."""
    collects = step.loop is None or step.loop.spec.collect != "none"
    has_output = task.output is not None or _is_kept_by_item(step)
    if collects or task.set or has_output or task.assert_ is not None:
        return False
    tasks = [codec.to_builtins(item) for item in step.tool]
    everywhere = compile_value(tasks).paths
    # In rules `output` is the task's own; in fields it is that of the task before.
    fields = [{key: item[key] for key in _FIELD_KEYS if key in item} for item in tasks]
    nearby = compile_value([codec.to_builtins(task.rules), fields]).paths
    readers = {task.name, *_RESULT_READERS}
    return not any(path.split(".")[0] in readers for path in everywhere) and not any(
        path in _OUTPUT_READERS or path.startswith("output.data") for path in nearby
    )


def _is_kept_by_item(step: Step) -> bool:
    """Tell whether the step's own block keeps what an item gives, of which its loop keeps none."""
    is_framed = step.loop is not None and step.loop.spec.frame is not None
    return step.output is not None and not is_framed


def _may_spread(task: Task, step: Step) -> bool:
    """Tell whether nothing in this pipeline reads the rows of a task, so that they may stay away.

    What comes after the step reads them by its reference.
    """
    blocks = [output for output in (task.output, step.output) if output is not None]
    takes = any(block.select or block.accumulate is not None for block in blocks)
    if len(step.tool) > 1 or takes or step.tool[0].kind not in _SPREADERS:
        return False
    nearby = compile_value([codec.to_builtins(task.rules), task.set]).paths
    readers = {task.name, *_RESULT_READERS}
    return not any(
        path in _OUTPUT_READERS or path.startswith("output.data") or path.split(".")[0] in readers
        for path in nearby
    )


def _get_default_timeout_s(task: Task) -> float:
    """Return the timeout of a task that has none; a stream has no end."""
    if task.kind == "spark" and task.fields.get("mode") == "stream":
        return TIMEOUT_S_MAX
    return TIMEOUT_S_BY_KIND.get(task.kind, TIMEOUT_S)


def parse_timeout(value: Any, default_s: float) -> Timeout:
    """Read a rendered timeout; raises `ToolFailure`."""
    parts = value if isinstance(value, dict) else {"total": value}
    seconds = {
        name: coercion.coerce_duration_s(part) for name, part in parts.items() if part is not None
    }
    if None in seconds.values():
        raise ToolFailure(
            build_error("validation", f"field 'timeout': {value!r} is not a duration")
        )
    if any(not -TIMEOUT_S_MAX <= item <= TIMEOUT_S_MAX for item in seconds.values() if item):
        text = f"field 'timeout': {value!r} is longer than {TIMEOUT_S_MAX} seconds"
        raise ToolFailure(build_error("validation", text))
    return Timeout(
        total=seconds.get("total") or default_s,
        connect=seconds.get("connect"),
        read=seconds.get("read"),
    )


def _collect_mentions(task: CompiledTask) -> frozenset[str]:
    """Gather every name that a task's templates read."""
    parts = [
        task.input,
        task.auth,
        task.timeout,
        *(compiled_template for _, compiled_template in task.fields),
    ]
    parts += [target.value for target in task.set]
    parts += task.rate_limit.template_parts if task.rate_limit is not None else ()
    mentions = frozenset[str]().union(*(part.names for part in parts))
    for rule in task.rules:
        value_names = (target.value.names for target in rule.action.set)
        condition_names = rule.condition.names if rule.condition is not None else frozenset[str]()
        mentions = mentions.union(condition_names, rule.action.attempts.names, *value_names)
    for inner_task in (task.submit, task.cancel):
        mentions = mentions.union(_collect_mentions(inner_task) if inner_task is not None else ())
    return mentions


def _compile_rule(rule: Rule, position: int, positions: dict[str, int]) -> CompiledRule:
    return CompiledRule(
        condition=None if rule.when is None else compile_condition(rule.when),
        action=_compile_action(rule.then, position, positions),
    )


def _compile_action(action: Action, position: int, positions: dict[str, int]) -> CompiledAction:
    to = -1
    if action.to is not None:
        to = position - 1 if action.to in {"previous", "prev"} else positions[action.to]
    return CompiledAction(
        do=action.do,
        attempts=compile_value(action.attempts),
        delay=None if action.delay is None else compile_value(action.delay),
        max_delay=compile_value(action.max_delay),
        message=None if action.message is None else compile_value(action.message),
        backoff=action.backoff,
        jitter=action.jitter,
        to=to,
        set=_compile_targets(action.set, bare="ctx"),
    )


def _compile_targets(block: dict[str, Any], *, bare: Room) -> tuple[WriteTarget, ...]:
    return tuple(_compile_target(key, value, bare) for key, value in block.items())


def _compile_target(key: str, value: Any, bare: Room) -> WriteTarget:
    head, _, member = key.partition(".")
    room: Room = bare
    path = key
    if member and head in {"ctx", "step"}:
        room, path = "ctx", member
    elif member and head == "iter":
        room, path = "iter", member
    compiled = compile_value(value)
    return WriteTarget(
        room=room,
        key=key,
        path=tuple(path.split(".")),
        value=compiled,
        is_secret=bool(compiled.names & _SECRET_NAMES),
    )
