"""Which names exist where in a document, and writes that parallel bodies may lose."""

from enum import StrEnum
from typing import Any, Literal

import msgspec

from noetl_playbook.model import language_names
from noetl_playbook.model.playbook import LoopSpec, Playbook, Step
from noetl_playbook.source.document_reader import DocumentReader
from noetl_playbook.source.problems import Path

_SUBMITTED = "submitted"
_ITER_ALWAYS = frozenset({"index", "calls", "next_call", "parent"})
_CORRELATION = frozenset({"correlation", "callback", _SUBMITTED})


class TemplateContext(StrEnum):
    """What kind of place a template stands in."""

    WORKLOAD = "workload defaults"
    KEYCHAIN = "keychain entries"
    WORKBOOK = "workbook entries"
    ADMISSION = "admission rules"
    LOOP = "the loop's own fields"
    SHARD_KEY = "the key of a shard"
    CLAIM = "a cursor's claim"
    TASK = "tasks"
    CANCEL = "what calls off submitted work"
    ARC = "arcs"
    SET = "the step's set"
    OTHER = "this place"


_TASKS = frozenset({TemplateContext.TASK, TemplateContext.CANCEL})
_BODY = _TASKS | {TemplateContext.WORKBOOK}
# The key names a shard by its first item, before the body runs.
_ITEMS = _BODY | {TemplateContext.SHARD_KEY}
_STEP = frozenset(TemplateContext) - {TemplateContext.WORKLOAD, TemplateContext.KEYCHAIN}
_CLAIMS = frozenset({TemplateContext.CLAIM})
_AT_THE_BOUNDARY = frozenset({TemplateContext.ARC, TemplateContext.SET})
# Where the names that do not exist everywhere do exist, in words and as places.
_SPOTS: dict[str, tuple[frozenset[TemplateContext], str]] = {
    "iter": (_ITEMS, "inside the step's tasks only"),
    **dict.fromkeys(("_prev", "_task", "_attempt", "results"),
                    (_BODY, "inside the step's tasks only")),
    **dict.fromkeys(("loop_index", "loop", "frame"), (_ITEMS, "inside a loop's body only")),
    "fanin": (_AT_THE_BOUNDARY | _BODY, "in arcs and in the step's set only"),
    "chunk": (_AT_THE_BOUNDARY | _BODY, "in the targets of call.partial only"),
    "increment": (_BODY, "inside the tasks of a step with incremental only"),
    "event": (
        frozenset({TemplateContext.ARC, TemplateContext.ADMISSION}),
        "in arcs and admission rules only",
    ),
    "input": (
        _BODY | {TemplateContext.WORKLOAD, TemplateContext.CLAIM},
        "inside the step's tasks only",
    ),
    "token": (_ITEMS | _CLAIMS, "where a worker renders: inside the step's tasks only"),
    **dict.fromkeys(
        ("output", "result", "response", "error", "outcome", "steps", "ctx", "vars", "args"),
        (_STEP, "once steps run, not before the start"),
    ),
    **dict.fromkeys(
        ("__frame_max_rows", "__frame_policy", "__worker_slot_id", "__frame_id", "__frame_index"),
        (_CLAIMS, "in a cursor's claim only"),
    ),
}  # fmt: skip


class KnownNames(msgspec.Struct, frozen=True, kw_only=True):
    """The names that a document defines."""

    fixed: frozenset[str]
    workload: dict[str, Any]
    ctx: frozenset[str]
    step_names: frozenset[str]
    keychain: frozenset[str]
    steps: dict[int, Step]
    local: dict[int, frozenset[str]]
    stream_targets: frozenset[str]


class NameFinding(msgspec.Struct, frozen=True, kw_only=True):
    """Something to say about a name that a template reads."""

    code: str
    name: str
    message: str
    hint: str | None = None
    is_unknown: bool = False
    # Whether a run alone can tell: a request may bring the name.
    is_open: bool = False


def list_stream_targets(playbook: Playbook) -> frozenset[str]:
    """Name the steps that a chunk activates."""
    return frozenset(
        arc.step
        for step in playbook.workflow
        for arc in (step.next.arcs if step.next else ())
        if arc.on == language_names.PARTIAL
    )


def list_written_keys(step: Step, scope: Literal["ctx", "iter"]) -> set[str]:
    """List the top-level keys that a step may set in a scope."""
    blocks: list[dict[str, Any]] = [step.set]
    blocks += [arc.set for arc in (step.next.arcs if step.next else ())]
    return _list_scope_keys(blocks, scope) | list_task_written_keys(step, scope)


def list_task_written_keys(step: Step, scope: Literal["ctx", "iter"]) -> set[str]:
    """List the top-level keys that the tasks of a step may set in a scope."""
    blocks = [task.set for task in step.tool]
    blocks += [rule.then.set for task in step.tool for rule in task.rules]
    return _list_scope_keys(blocks, scope)


def _list_scope_keys(blocks: list[dict[str, Any]], scope: str) -> set[str]:
    targets = (language_names.split_target(key) for block in blocks for key in block)
    return {target[1].split(".")[0] for target in targets if target and target[0] == scope}


class NameView:
    """What can be read at one place of a document."""

    def __init__(
        self,
        known_names: KnownNames,
        spot: TemplateContext,
        *,
        step: Step | None = None,
        local: frozenset[str] = frozenset(),
        is_judged: bool = True,
    ) -> None:
        self._known_names = known_names
        self._spot = spot
        self._step = step
        # Names that exist in the body of this step alone.
        self._local = local
        # A loop that could not be read says nothing about its names.
        self._is_judged = is_judged

    def list_near_names(self, name: str) -> frozenset[str]:
        """List the names that may have been meant."""
        root, _, member = name.partition(".")
        known_names = self._known_names
        if member and root in ("steps", "keychain"):
            step_names = known_names.step_names if root == "steps" else known_names.keychain
            return frozenset(f"{root}.{step_name}" for step_name in step_names)
        if member and root == "iter":
            return frozenset(f"iter.{iter_name}" for iter_name in self._list_iter_names())
        return (
            known_names.fixed
            | known_names.workload.keys()
            | known_names.ctx
            | known_names.step_names
            | self._local
        )

    def judge_names(self, names: frozenset[str], paths: frozenset[str]) -> list[NameFinding]:
        """Judge the names that one template reads."""
        name_findings = [
            finding for name in sorted(names) if (finding := self._judge_name(name)) is not None
        ]
        name_findings += self._judge_members(paths)
        if self._spot in _TASKS and self._step is not None:
            name_findings += self._find_lost_updates(self._step, names, paths)
        return name_findings

    def _judge_name(self, name: str) -> NameFinding | None:
        if name in language_names.FIXED_NAMES or (name in _SPOTS and not self._is_defined(name)):
            return self._find_misplaced(name)
        if self._is_defined(name) or name in self._known_names.fixed:
            return None
        if name in self._local:
            if not self._is_judged or self._exists_here(name):
                return None
            place_text = "in cancel" if name == _SUBMITTED else "inside the step's tasks"
            return NameFinding(code="E304", name=name, message=f"'{name}' exists {place_text} only")
        if self._spot is TemplateContext.WORKBOOK:
            # The caller brings names of its own.
            return None
        if name in self._known_names.step_names | self._known_names.ctx:
            message = f"'{name}' exists once steps run, not before the start"
            return NameFinding(code="E304", name=name, message=message)
        message = f"'{name}' is not a name here"
        is_open = self._spot is TemplateContext.WORKLOAD
        return NameFinding(
            code="E303", name=name, message=message, is_unknown=True, is_open=is_open
        )

    def _exists_here(self, name: str) -> bool:
        """Tell whether a name of the step's own exists at this place."""
        if name == _SUBMITTED:
            return self._spot is TemplateContext.CANCEL
        if self._spot is TemplateContext.SHARD_KEY:
            return self._step is not None and name in _list_item_names(self._step)
        return self._spot in _BODY

    def _is_defined(self, name: str) -> bool:
        """Tell whether the document defines a name that can be read here."""
        if name in self._known_names.workload:
            return True
        is_begun = self._spot in _STEP
        return is_begun and name in self._known_names.step_names | self._known_names.ctx

    def _find_misplaced(self, name: str) -> NameFinding | None:
        spots, place_text = _SPOTS.get(name, (frozenset(TemplateContext), ""))
        if self._spot in spots | {TemplateContext.OTHER} and (
            not self._is_judged or self._fits_step(name)
        ):
            return None
        return NameFinding(code="E304", name=name, message=f"'{name}' exists {place_text}")

    def _fits_step(self, name: str) -> bool:
        """Tell whether the step is of the kind that has a name."""
        step = self._step
        if step is None or self._spot is TemplateContext.WORKBOOK:
            return True
        if name in ("loop", "loop_index"):
            return step.loop is not None or step.reduce is not None
        if name == "frame":
            return step.reduce is not None or (
                step.loop is not None and is_framed_loop(step.loop.spec)
            )
        if name == "fanin":
            in_body = self._spot in _TASKS
            return step.reduce is not None if in_body else (step.loop or step.reduce) is not None
        if name == "increment":
            return step.incremental is not None
        if name == "chunk":
            arcs = step.next.arcs if step.next else ()
            streams = self._spot is TemplateContext.ARC and any(
                arc.on == language_names.PARTIAL for arc in arcs
            )
            return streams or step.step in self._known_names.stream_targets
        return True

    def _list_iter_names(self) -> set[str]:
        step = self._step
        if step is None:
            return set()
        by_tasks = (
            set() if self._spot is TemplateContext.SHARD_KEY else list_written_keys(step, "iter")
        )
        return by_tasks | _list_item_names(step) | _ITER_ALWAYS

    def _judge_members(self, paths: frozenset[str]) -> list[NameFinding]:
        """Judge `iter.x`, `steps.x` and `keychain.x`, whose members are known."""
        name_findings: list[NameFinding] = []
        known_names = self._known_names
        for root, name in sorted({_split_first_two(path) for path in paths}):
            written_so = f"{root}.{name}"
            if not name or name.startswith("_"):
                continue
            if root == "steps" and name not in known_names.step_names:
                message = f"'{name}' is not a step of this workflow"
            elif root == "keychain" and name not in known_names.keychain:
                message = f"'{name}' is not an entry of the keychain"
            else:
                continue
            name_findings.append(
                NameFinding(code="E303", name=written_so, message=message, is_unknown=True)
            )
        if (
            self._spot in _TASKS | {TemplateContext.SHARD_KEY}
            and self._step is not None
            and self._is_judged
        ):
            name_findings += self._find_unset_iter(paths)
        return name_findings

    def _find_unset_iter(self, paths: frozenset[str]) -> list[NameFinding]:
        iter_names = self._list_iter_names()
        step = self._step
        has_loop = step is not None and (step.loop is not None or step.reduce is not None)
        reason = "" if has_loop else ", and the step has no loop"
        return [
            NameFinding(
                code="E304",
                name=f"iter.{name}",
                message=f"'iter.{name}' is never set here{reason}",
                is_unknown=True,
            )
            for root, name in sorted({_split_first_two(path) for path in paths})
            if root == "iter" and name and name not in iter_names and not name.startswith("_")
        ]

    def _find_lost_updates(
        self, step: Step, names: frozenset[str], paths: frozenset[str]
    ) -> list[NameFinding]:
        if step.loop is None or not is_parallel_loop(step.loop.spec):
            return []
        keys = {name for root, name in map(_split_first_two, paths) if root == "ctx"}
        keys |= {name for name in names if name not in language_names.FIXED_NAMES | self._local}
        return [
            NameFinding(
                code="W907",
                name=f"ctx.{key}",
                message=f"parallel bodies read and write 'ctx.{key}'; the last write wins",
                hint="use results, accumulate or a reduce step",
            )
            for key in sorted(list_task_written_keys(step, "ctx") & keys)
        ]


def _split_first_two(path: str) -> tuple[str, str]:
    root, _, tail = path.partition(".")
    return root, tail.split(".")[0]


def _find_iterator(step: Step) -> str | None:
    if step.loop is not None:
        return step.loop.iterator
    return step.reduce.iterator if step.reduce is not None else None


def _list_item_names(step: Step) -> set[str]:
    iterator = _find_iterator(step)
    return {iterator, f"{iterator}_rows"} if iterator is not None else set()


def is_framed_loop(spec: LoopSpec) -> bool:
    """Tell whether a loop's body runs on frames."""
    return spec.mode in ("chunked", "cursor", "fanout")


def is_parallel_loop(spec: LoopSpec) -> bool:
    """Tell whether bodies of a loop may run at once; rows of a frame one by one do not."""
    if spec.mode == "sequential":
        return False
    rows = spec.frame.row_concurrency if spec.frame is not None else 1
    return spec.max_in_flight != 1 or rows != 1


def build_name_view(reading: DocumentReader, path: Path, known_names: KnownNames) -> NameView:
    """Tell what can be read at a place."""
    match path:
        case ("workload" | "vars" | "spec", *_):
            return NameView(
                known_names,
                TemplateContext.WORKLOAD if path[0] != "vars" else TemplateContext.OTHER,
            )
        case ("keychain", *_):
            return NameView(known_names, TemplateContext.KEYCHAIN)
        case ("workbook", *_):
            return NameView(known_names, TemplateContext.WORKBOOK)
        case ("workflow", int(index), *_):
            step = known_names.steps.get(index)
            return NameView(
                known_names,
                _find_step_context(reading, path),
                step=step,
                local=known_names.local.get(index, frozenset()),
                is_judged=step is not None and not _is_loop_unread(reading, index, step),
            )
        case _:
            return NameView(known_names, TemplateContext.OTHER)


def _find_step_context(reading: DocumentReader, path: Path) -> TemplateContext:
    match path[2:]:
        case ("next", *_):
            return TemplateContext.ARC
        case ("set", *_):
            return TemplateContext.SET
        case ("loop", "cursor", "claim" | "params", *_):
            return TemplateContext.CLAIM
        case ("loop", "spec", "fanout", "key"):
            return TemplateContext.SHARD_KEY
        case ("loop" | "reduce", *_):
            return TemplateContext.LOOP
        case ("spec", "policy", "admit", *_):
            return TemplateContext.ADMISSION
        case _:
            return TemplateContext.CANCEL if _is_in_cancel(reading, path) else TemplateContext.TASK


def _is_in_cancel(reading: DocumentReader, path: Path) -> bool:
    if "cancel" not in path:
        return False
    task = reading.find_task(path)
    if task is None or task.kind != "external":
        return False
    return path[len(task.path) : len(task.path) + 1] == ("cancel",)


def _is_loop_unread(reading: DocumentReader, index: int, step: Step) -> bool:
    raw = reading.document.value["workflow"][index]
    return any(
        raw.get(key) is not None and getattr(step, key) is None for key in ("loop", "reduce")
    )


def list_local_names(reading: DocumentReader, path: Path, step: Step) -> frozenset[str]:
    """List the names that exist only inside a step."""
    names = {task.name for task in reading.list_tasks(path)}
    for task in step.tool:
        names.add(task.name)
        names |= {key.split(".")[0] for key in task.set if not key.startswith(("ctx.", "iter."))}
        if task.output is not None:
            names |= {task.output.as_} if task.output.as_ else set()
            names |= {task.output.accumulate.manifest_as} if task.output.accumulate else set()
        if task.kind == "external":
            names |= _CORRELATION
    return frozenset(names | _list_item_names(step))
