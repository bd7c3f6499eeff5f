"""Names of steps that somebody asks for: held against the playbook that an execution runs."""

from noetl_contracts import spelling
from noetl_contracts.ids import ExecutionId
from noetl_planner.http import problems
from noetl_planner.http.services import ApiServices

_CHARACTERS_MAX = 200


async def check_step(
    services: ApiServices, execution_id: ExecutionId, *, path: str, version: int | None, step: str
) -> None:
    """Refuse a step that the playbook of an execution does not have; raises a 404.

    Nothing is said of an execution that has not begun, or whose playbook is not in the catalog.
    """
    if version is None:
        return
    entry = await services.catalog.find(path, version=version, **services.place)
    if entry is None:
        return
    names = [str(each["step"]) for each in entry.model.get("workflow", ())]
    if step in names:
        return
    raise problems.not_found(
        f"the playbook of execution {execution_id} has no step {step[:_CHARACTERS_MAX]!r}",
        hint=spelling.hint_or_list(step, names, label="its steps are"),
    )
