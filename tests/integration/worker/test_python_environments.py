"""Packages of python tasks: real environments, made from a folder of wheels."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.attempting import site_of
from tests.support.calls import VISITS
from tests.support.wheels import write_wheel
from tests.support.working import ORGANIZATION, Bench, bench

from noetl_contracts.ids import OrganizationId, TenantId
from noetl_worker.tools.calls.call import Call, Outcome, Timeout

PLACE = "import greeting\nreturn [greeting.say(), greeting.__file__]"


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    write_wheel(folder, "greeting", "1.0", "def say():\n    return 'one'\n")
    return folder


@asynccontextmanager
async def worker_of(wheels: Path, **fields: Any) -> AsyncIterator[Bench]:
    settings = {"python_requirements": "any", "python_index": "none", **fields}
    async with bench(python_links=str(wheels), **settings) as found:
        yield found


async def run(
    worker: Bench, code: str, organization: OrganizationId = ORGANIZATION, **fields: Any
) -> Outcome:
    site = site_of(tenant_id=TenantId("acme"), organization_id=organization)
    return await worker.tools.run(
        Call(
            site=site,
            task="t",
            kind="python",
            attempt=1,
            visit=next(VISITS),
            fields={"code": code, **fields},
            input={},
            auth=None,
            timeout=Timeout(total=300),
        )
    )


def message_of(outcome: Outcome) -> str:
    assert outcome.error is not None, outcome.data
    return outcome.error.message


@pytest.fixture(params=["uv", "pip"])
def installer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Have uv at hand, or nothing but the pip that Python brings."""
    folder = Path(__file__).parents[3] / ".uv" / "bin"
    if request.param == "uv":
        assert (folder / "uv").exists()
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    else:
        monkeypatch.setenv("PATH", "/nowhere")
    return str(request.param)


async def test_a_task_has_its_packages_and_another_task_has_not(
    wheels: Path, installer: str
) -> None:
    assert installer
    async with worker_of(wheels) as worker:
        found = await run(worker, PLACE, requirements=["greeting==1.0"])
        assert found.error is None, found.error
        assert found.data[0] == "one"
        again = await run(worker, PLACE, requirements="# a comment\ngreeting==1.0")
        assert again.data == found.data
        older = await run(worker, PLACE, deps={"packages": ["greeting==1.0"]})
        assert older.data == found.data
        assert "requirements: [greeting]" in message_of(await run(worker, PLACE))


async def test_an_environment_is_made_once_for_tasks_that_come_together(wheels: Path) -> None:
    async with worker_of(wheels, python_processes_max=4) as worker:
        asked = (run(worker, PLACE, requirements=["greeting"]) for _ in range(4))
        found = await asyncio.gather(*asked)
        assert len({item.data[1] for item in found}) == 1


async def test_each_organization_has_environments_of_its_own(wheels: Path) -> None:
    async with worker_of(wheels) as worker:
        own = await run(worker, PLACE, requirements=["greeting"])
        other = await run(worker, PLACE, OrganizationId("others"), requirements=["greeting"])
        assert own.data[0] == other.data[0] == "one"
        assert own.data[1] != other.data[1]


async def test_old_environments_are_removed_when_nobody_uses_them(wheels: Path) -> None:
    write_wheel(wheels, "greeting", "2.0", "def say():\n    return 'two'\n")
    settings = {"python_environments_max": 1, "python_processes_max": 1}
    async with worker_of(wheels, **settings) as worker:
        first = await run(worker, PLACE, requirements=["greeting==1.0"])
        second = await run(worker, PLACE, requirements=["greeting==2.0"])
        third = await run(worker, PLACE, requirements=["greeting==1.0"])
        assert [item.data[0] for item in (first, second, third)] == ["one", "two", "one"]
        places = Path(first.data[1]).parents[2]
        assert len(list(places.iterdir())) <= 2


async def test_hashes_are_held(wheels: Path, installer: str) -> None:
    assert installer
    right = write_wheel(wheels, "greeting", "3.0", "def say():\n    return 'three'\n")
    wrong = f"--hash=sha256:{'0' * 64}"
    async with worker_of(wheels, python_requirements="hashed") as worker:
        found = await run(worker, PLACE, requirements=[f"greeting==3.0 {right}"])
        assert found.error is None, found.error
        assert found.data[0] == "three"
        outcome = message_of(await run(worker, PLACE, requirements=[f"greeting==3.0 {wrong}"]))
        assert "hash" in outcome.lower()
        bare = message_of(await run(worker, PLACE, requirements=["greeting==3.0"]))
        assert "NOETL_WORKER_PYTHON_REQUIREMENTS=any" in bare


async def test_what_cannot_be_installed_says_why_and_leaves_nothing(
    wheels: Path, installer: str
) -> None:
    assert installer
    async with worker_of(wheels) as worker:
        outcome = await run(worker, "return 1", requirements=["absent-package==1.0"])
        told = message_of(outcome)
        assert outcome.error is not None
        assert outcome.error.kind == "missing_dependency"
        assert "absent-package" in told
        assert "NOETL_WORKER_PYTHON_LINKS" in told
        assert (await run(worker, PLACE, requirements=["greeting"])).error is None


@pytest.mark.parametrize("installer", ["pip"], indirect=True)
async def test_of_many_versions_the_newest_are_told(wheels: Path, installer: str) -> None:
    assert installer
    for number in range(10, 30):
        write_wheel(wheels, "greeting", f"9.{number}", "")
    async with worker_of(wheels) as worker:
        told = message_of(await run(worker, "return 1", requirements=["greeting==99.0"]))
    assert "(there are …, 9.22, 9.23, 9.24, 9.25, 9.26, 9.27, 9.28, 9.29)" in told
    assert "NOETL_WORKER_PYTHON_LINKS" in told


async def test_too_large_an_environment_is_refused_by_the_name_of_the_setting(
    wheels: Path,
) -> None:
    write_wheel(wheels, "heavy", "1.0", "x = '" + "x" * 2 * 1024 * 1024 + "'\n")
    async with worker_of(wheels, python_environment_bytes_max=1024 * 1024) as worker:
        outcome = await run(worker, "return 1", requirements=["heavy"])
        assert outcome.error is not None
        assert outcome.error.kind == "limit"
        assert "NOETL_WORKER_PYTHON_ENVIRONMENT_BYTES_MAX" in outcome.error.message


async def test_another_version_of_what_the_process_has_loaded_is_refused(wheels: Path) -> None:
    write_wheel(wheels, "msgspec", "0.1", "")
    async with worker_of(wheels) as worker:
        outcome = await run(worker, "return 1", requirements=["msgspec==0.1"])
        assert f"msgspec=={msgspec.__version__}" in message_of(outcome)


async def test_packages_do_not_take_the_place_of_those_of_python(wheels: Path) -> None:
    write_wheel(wheels, "statistics", "9.0", "mean = None\n")
    async with worker_of(wheels) as worker:
        code = "import statistics\nreturn statistics.mean([1, 3])"
        assert (await run(worker, code, requirements=["statistics"])).data == 2
