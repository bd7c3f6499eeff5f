"""A few random workflows on every service in one process: what the kernel and the oracle say."""

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from tests.property.test_random_workflows import assert_expected
from tests.simulation.test_one_process import assert_projected, ended, running
from tests.support import invariants, oracle
from tests.support.shaking import Shaker
from tests.support.sketches import Sketch, text
from tests.support.sketching import acyclic

from noetl_planner.api.catalog import playbooks
from noetl_planner.api.executions import start_requests
from noetl_planner.api.executions.start_requests import ExecuteBody
from noetl_playbook.source.problems import Level

pytestmark = pytest.mark.timeout(300)

SAMPLE = 8


def sample(number: int) -> list[Sketch]:
    """Draw the same few workflows every time."""
    sketches: list[Sketch] = []

    @seed(number)
    @settings(
        max_examples=4 * SAMPLE,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(acyclic(steps_max=8, is_real=True))
    def collect(sketch: Sketch) -> None:
        sketches.append(sketch)

    collect()
    return sorted(sketches, key=lambda one: len(one.nodes))[-SAMPLE:]


async def test_workers_come_to_what_the_kernel_and_the_language_say(tmp_path: Path) -> None:
    sketches = sample(1)
    assert len(sketches) == SAMPLE
    assert max(len(item.nodes) for item in sketches) > 3
    async with running(tmp_path) as opened:
        ids = []
        for number, sketch in enumerate(sketches):
            written = text(sketch, name=f"w{number}", must_be_real=True)
            await playbooks.register_text(opened.services, written, level=Level.STRICT)
            body = ExecuteBody(path=f"random/w{number}")
            ids.append(
                (await start_requests.execute_playbook(opened.services, body, None)).execution_id
            )
        for sketch, execution_id in zip(sketches, ids, strict=True):
            events = await ended(opened, execution_id)
            state = await assert_projected(opened, events)
            expected = oracle.play(sketch)
            assert_expected(sketch, expected, state, events)
            invariants.assert_chained(events)
            invariants.assert_joins(events, sketch)
            harness = Shaker(sketch, random.Random(0)).play()
            assert_expected(sketch, expected, harness.state, harness.history)
            if not expected.failures:
                assert invariants.units(events) == invariants.units(harness.history)
