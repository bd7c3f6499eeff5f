"""Two runs side by side: their inputs, their steps, and what differs of each.

The console and `noetl diff` show what this route answers; neither compares by itself.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from litestar import get
from litestar.params import FromPath, QueryParameter
from msgspec import UNSET, Struct, UnsetType

from noetl_contracts.ids import ExecutionId
from noetl_planner.api.executions import moments
from noetl_planner.api.executions.moments import RUNS_MAX, Moment, StepMoment
from noetl_planner.api.history import results
from noetl_planner.api.history.results import ResultOutline
from noetl_planner.api.http.problems import NUMBER_MAX
from noetl_planner.api.http.services import ApiServices, Services
from noetl_planner.api.lookup import fold_slices, hidden_values


class ComparedRun(Struct, frozen=True, kw_only=True):
    """One of the two runs, as it is or as it was at `version`."""

    execution_id: str
    path: str
    playbook_version: int | None
    status: str
    version: int
    duration: float | None


class ComparedInput(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An input that is not the same in both; it is left out of the run that lacks it."""

    name: str
    one: Any | UnsetType = UNSET
    other: Any | UnsetType = UNSET


class ComparedStep(Struct, frozen=True, kw_only=True):
    """A step of either run; `differences` says in words what is not equal.

    Durations are shown, and never count as a difference. Digests are of the latest results.
    """

    step: str
    one: StepMoment | None
    other: StepMoment | None
    one_digest: str | None
    other_digest: str | None
    differences: list[str]


class RunDifference(Struct, frozen=True, kw_only=True):
    """All that differs between two runs.

    `not_compared` says what was left out; inputs that were are null. Where all that was compared
    is alike, and something was left out, `is_alike` is null: nobody knows.
    """

    one: ComparedRun
    other: ComparedRun
    is_alike: bool | None
    differences: list[str]
    inputs: list[ComparedInput] | None
    steps: list[ComparedStep]
    not_compared: list[str]


class RunSides(Struct, frozen=True, kw_only=True):
    """Both runs, the first one first; results are None where they are not compared."""

    moments: tuple[Moment, Moment]
    results: tuple[list[ResultOutline], list[ResultOutline]] | None
    not_compared: list[str]
    has_inputs: bool


@get(
    "/executions/{execution_id:str}/difference",
    tags=["executions"],
    responses=fold_slices.UNDER_WAY,
)
async def show_difference(
    services: Services,
    execution_id: FromPath[str],
    other_id: Annotated[str, QueryParameter(name="with", min_length=1, max_length=200)],
    version: Annotated[int | None, QueryParameter(ge=1, le=NUMBER_MAX)] = None,
) -> RunDifference:
    """Compare a run with another: its inputs, steps and results; `version` is one of the first."""
    return compare_sides(
        await _read_sides(
            services,
            await moments.view_moment(services, execution_id, version),
            await moments.view_moment(services, other_id, None),
        )
    )


async def _read_sides(services: ApiServices, one: Moment, other: Moment) -> RunSides:
    ids = [ExecutionId(moment.execution_id) for moment in (one, other)]
    may_read = [await hidden_values.may_read_values(services, run_id) for run_id in ids]
    has_values = all(may_read)
    not_compared = [
        f"runs of steps of {moment.execution_id} after its first {RUNS_MAX}"
        for moment in (one, other)
        if moment.more_runs
    ]
    if not has_values:
        not_compared.append("inputs and results, which your roles do not let you read")
    elif one.is_past:
        not_compared.append("results, of which the latest alone are listed")
    outlines = (
        [await results.list_step_results(services, run_id) for run_id in ids]
        if has_values and not one.is_past
        else None
    )
    return RunSides(
        moments=(one, other),
        results=None if outlines is None else (outlines[0].results, outlines[1].results),
        not_compared=not_compared,
        has_inputs=has_values,
    )


def compare_sides(sides: RunSides) -> RunDifference:
    """Compare what is known of two runs."""
    one, other = sides.moments
    inputs = compare_inputs(one.workload, other.workload) if sides.has_inputs else None
    steps = _compare_steps(sides.moments, sides.results)
    differences = [
        name for name in ("path", "status") if getattr(one, name) != getattr(other, name)
    ]
    is_different = bool(differences or inputs or any(step.differences for step in steps))
    return RunDifference(
        one=_view_run(one),
        other=_view_run(other),
        is_alike=None if sides.not_compared and not is_different else not is_different,
        differences=differences,
        inputs=inputs,
        steps=steps,
        not_compared=sides.not_compared,
    )


def _view_run(moment: Moment) -> ComparedRun:
    return ComparedRun(
        execution_id=moment.execution_id,
        path=moment.path,
        playbook_version=moment.playbook_version,
        status=moment.status,
        version=moment.version,
        duration=moment.duration,
    )


def compare_inputs(one: Any, other: Any) -> list[ComparedInput]:
    """List the inputs that are not the same in both."""
    ours, theirs = _get_fields(one), _get_fields(other)
    return [
        ComparedInput(name=name, one=ours.get(name, UNSET), other=theirs.get(name, UNSET))
        for name in dict.fromkeys([*ours, *theirs])
        if name not in ours or name not in theirs or not _is_same(ours[name], theirs[name])
    ]


def _compare_steps(
    sides: tuple[Moment, Moment], outlines: tuple[list[ResultOutline], list[ResultOutline]] | None
) -> list[ComparedStep]:
    """Compare the steps of both, in the order of the first."""
    ours, theirs = ({step.step: step for step in moment.steps} for moment in sides)
    first, second = (
        {outline.step: outline for outline in of_run} for of_run in outlines or ([], [])
    )
    return [
        _compare_step(step, (ours.get(step), theirs.get(step)), (first.get(step), second.get(step)))
        for step in dict.fromkeys([*ours, *theirs])
    ]


def _compare_step(
    name: str,
    steps: tuple[StepMoment | None, StepMoment | None],
    outlines: tuple[ResultOutline | None, ResultOutline | None],
) -> ComparedStep:
    one, other = steps
    if one is None or other is None:
        differences = ["only in the second run" if one is None else "only in the first run"]
    else:
        differences = [*_list_step_differences(one, other), *_list_result_differences(outlines)]
    digests = [None if outline is None else outline.digest for outline in outlines]
    return ComparedStep(
        step=name,
        one=one,
        other=other,
        one_digest=digests[0],
        other_digest=digests[1],
        differences=differences,
    )


def _list_step_differences(one: StepMoment, other: StepMoment) -> list[str]:
    differences = ["status"] if one.status != other.status else []
    if not _is_same(one.error, other.error):
        differences.append("error")
    differences += [
        f"{name}: {getattr(one, name)}, {getattr(other, name)}"
        for name in ("runs", "retries")
        if getattr(one, name) != getattr(other, name)
    ]
    return [*differences, "came from"] if one.came_from != other.came_from else differences


def _list_result_differences(outlines: Sequence[ResultOutline | None]) -> list[str]:
    one, other = outlines
    if one is None or other is None:
        return [] if one is other else ["result"]
    if one.row_count != other.row_count:
        counts = ["-" if item.row_count is None else item.row_count for item in (one, other)]
        return [f"rows: {counts[0]}, {counts[1]}"]
    return [] if one.digest == other.digest else ["result"]


def _is_same(one: Any, other: Any) -> bool:
    """Tell whether two values of JSON are the same; true is not the number 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return bool(one == other)


def _get_fields(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


ROUTES = (show_difference,)
