"""One attempt of one tool, without a pipeline around it."""

from pathlib import Path
from typing import Any

from tests.support.calls import VISITS
from tests.support.working import EXECUTION, ORGANIZATION, TENANT, Bench

from noetl_worker.domain.unit_identity import UnitScope
from noetl_worker.tools.calls.call import Call, Outcome, Timeout


def site_of(**fields: Any) -> UnitScope:
    """Where an attempt stands."""
    known_names: dict[str, Any] = {
        "execution_id": EXECUTION,
        "tenant_id": TENANT,
        "organization_id": ORGANIZATION,
        "step": "s",
        "unit": "step",
    }
    return UnitScope(**{**known_names, **fields})


async def attempt(
    worker: Bench,
    kind: str,
    fields: dict[str, Any],
    *,
    auth: Any = None,
    given: dict[str, Any] | None = None,
    at: UnitScope | None = None,
    timeout_s: float = 30,
    visit: int | None = None,
) -> Outcome:
    """Run a tool once, as a task of its own unless `visit` says which one it is."""
    return await worker.tools.run(
        Call(
            site=at or site_of(),
            task="t",
            kind=kind,
            attempt=1,
            visit=next(VISITS) if visit is None else visit,
            fields=fields,
            input=given or {},
            auth=auth,
            timeout=Timeout(total=timeout_s),
        )
    )


async def data_of(worker: Bench, kind: str, fields: dict[str, Any], **about: Any) -> Any:
    """Run a tool once and return what it gave."""
    found = await attempt(worker, kind, fields, **about)
    assert found.error is None, found.error
    return found.data


def of_organization(path: str) -> str:
    """Name a file of the organization."""
    return f"noetl://files/{path}"


def files_of(work_directory: Path) -> Path:
    """The folder of the organization's own files."""
    path = work_directory / "tenant" / TENANT / "org" / ORGANIZATION / "files"
    path.mkdir(parents=True, exist_ok=True)
    return path
