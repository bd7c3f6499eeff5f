"""Which containers are orphans: of killed processes of this machine, and those past their time."""

import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from tests.support.manual_clock import ManualClock

from noetl_storage.process import scratch
from noetl_worker.tools.container.orphan_sweep import OrphanSweep, build_process_owner
from noetl_worker.tools.container.runtime import ContainerRecord

NOW_S = 1_000_000


class Listed:
    """A runtime that lists one container, and remembers what is removed."""

    def __init__(self, owner: str, deadline_s: int) -> None:
        self.record = ContainerRecord(
            container_id="c", name="noetl-c", owner=owner, deadline_s=deadline_s
        )
        self.removed: list[str] = []

    async def list_containers(self) -> list[ContainerRecord]:
        return [self.record]

    async def remove_container(self, container_id: str, *, grace_s: float) -> None:
        self.removed.append(container_id)


async def is_removed(owner: str, *, deadline_s: int = NOW_S + 1, own: str = "own:/x") -> bool:
    listed = Listed(owner, deadline_s)
    clock = ManualClock(datetime.fromtimestamp(NOW_S, UTC))
    sweep = OrphanSweep(cast("Any", listed), owner=own, clock=clock)
    assert await sweep.sweep_containers() == len(listed.removed)
    return bool(listed.removed)


async def test_a_container_of_a_process_that_lives_is_left_alone() -> None:
    with scratch.hold_scratch_folder("containers") as folder:
        owner = build_process_owner(folder)
        assert not await is_removed(owner)
        assert not await is_removed(owner, own=owner)
    assert await is_removed(owner)


async def test_a_folder_that_nobody_holds_is_of_a_killed_process(tmp_path: Path) -> None:
    assert await is_removed(f"{platform.node()}:{tmp_path}")


@pytest.mark.parametrize("owner", ["elsewhere:/tmp/gone", "", "no-folder"])
async def test_of_other_machines_nothing_is_known_until_the_deadline(owner: str) -> None:
    assert not await is_removed(owner)
    assert not await is_removed(owner, deadline_s=0)
    assert await is_removed(owner, deadline_s=NOW_S - 1)


async def test_past_its_deadline_a_container_of_anybody_goes() -> None:
    assert await is_removed("own:/x", deadline_s=NOW_S - 1)
