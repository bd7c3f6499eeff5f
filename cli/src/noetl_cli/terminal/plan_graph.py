"""A plan as a tree for people and as a Mermaid flow chart."""

from collections.abc import Iterator

from noetl_playbook.outline import Outline, PlanArc, PlanStep, Stage

LABEL_CHARACTERS_MAX = 60


def format_tree_lines(outline: Outline) -> Iterator[str]:
    """Write the steps below those that lead to them; a step that stands above is only named."""
    yield f"{outline.path}: {_format_count(len(outline.steps), 'step')}, begins at {outline.entry}"
    by_name = {step.step: step for step in outline.steps}
    shown_names: set[str] = set()
    yield from _format_branch_lines(by_name, outline.entry, shown_names)
    for name in outline.unreachable:
        if name not in shown_names:
            yield ""
            yield "cannot be reached:"
            yield from _format_branch_lines(by_name, name, shown_names)
    yield ""
    yield from _format_summary_lines(outline)


def _format_branch_lines(
    by_name: dict[str, PlanStep], first: str, shown_names: set[str]
) -> Iterator[str]:
    """Walk depth first without recursion: a workflow may be two thousand steps deep."""
    waiting: list[tuple[str, PlanArc | None, str]] = [(first, None, "")]
    while waiting:
        name, arc, indent = waiting.pop()
        lead = "" if arc is None else "-> "
        label = _format_arc_label(arc)
        step = by_name.get(name)
        if step is None or name in shown_names:
            yield f"{indent}{lead}{name}{label} (above)"
            continue
        shown_names.add(name)
        yield f"{indent}{lead}{name}{label}: {', '.join(step.tools)}{_list_step_marks(step)}"
        for detail in _list_step_details(step):
            yield f"{indent}     {detail}"
        # Below a depth that no terminal shows, steps are listed without further indentation.
        deeper = indent + "  " if len(indent) < LABEL_CHARACTERS_MAX else indent
        waiting += [(below.step, below, deeper) for below in reversed(step.arcs)]


def _format_arc_label(arc: PlanArc | None) -> str:
    if arc is None:
        return ""
    parts = [f"on {arc.on}"] if arc.on is not None else []
    parts += [f"when {arc.when}"] if arc.when is not None else []
    parts += ["at the end"] if arc.is_implicit else []
    return f" [{', '.join(parts)}]" if parts else ""


def _list_step_marks(step: PlanStep) -> str:
    marks = [name for name, is_so in (("join", step.is_join), ("cycle", step.is_in_cycle)) if is_so]
    return f" ({', '.join(marks)})" if marks else ""


def _list_step_details(step: PlanStep) -> Iterator[str]:
    if step.stage is not None:
        yield _format_stage(step.stage)
    if step.credentials:
        yield f"credentials: {', '.join(step.credentials)}"
    if step.keychain:
        yield f"keychain: {', '.join(step.keychain)}"
    if step.playbooks:
        yield f"calls: {', '.join(step.playbooks)}"


def _format_stage(stage: Stage) -> str:
    parts = [f"{stage.kind}: {stage.mode}, {stage.max_in_flight} in flight"]
    parts += [f"from {', '.join(stage.sources)}"] if stage.sources else []
    parts += [_format_count(stage.units, "unit")] if stage.units is not None else []
    parts += (
        [_format_count(stage.frames, "frame")] if stage.frames is not None and stage.frame else []
    )
    if stage.frame is not None:
        frame = stage.frame
        parts.append(f"frame of {frame['max_rows']} rows, lease {frame['lease_seconds']} s")
    return ", ".join(parts)


def _format_summary_lines(outline: Outline) -> Iterator[str]:
    yield f"tools: {', '.join(outline.tools)}"
    for title, names in (
        ("credentials", outline.credentials),
        ("keychain", outline.keychain),
        ("playbooks", outline.playbooks),
        ("cannot be reached", outline.unreachable),
    ):
        if names:
            yield f"{title}: {', '.join(names)}"
    for cycle in outline.cycles:
        yield f"cycle: {' -> '.join((*cycle, cycle[0]))}"


def format_mermaid_lines(outline: Outline) -> Iterator[str]:
    """Write a Mermaid flow chart; loops are hexagons, conditions stand on the arcs."""
    ids = {step.step: f"s{number}" for number, step in enumerate(outline.steps)}
    yield "flowchart TD"
    for step in outline.steps:
        text = _escape_label(f"{step.step}\n{', '.join(step.tools)}")
        node = f'{{{{"{text}"}}}}' if step.stage is not None else f'["{text}"]'
        yield f"  {ids[step.step]}{node}"
    for step in outline.steps:
        for arc in step.arcs:
            if arc.step not in ids:
                continue
            label = " ".join(part for part in (arc.on, arc.when) if part)
            line = "-.->" if arc.is_implicit else "-->"
            written = f'|"{_escape_label(_shorten_label(label))}"|' if label else ""
            yield f"  {ids[step.step]} {line}{written} {ids[arc.step]}"


def _shorten_label(text: str) -> str:
    return text if len(text) <= LABEL_CHARACTERS_MAX else text[: LABEL_CHARACTERS_MAX - 1] + "…"


def _escape_label(text: str) -> str:
    """Spell what Mermaid would read as markup as entities."""
    marks = {"&": "#amp;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "#": "#35;", "\n": "<br/>"}
    return "".join(marks.get(item, item) for item in text)


def _format_count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
