"""What the leader alone knows, a reaper that leads no more does not show."""

from opentelemetry.metrics import CallbackOptions
from tests.unit.reaper.test_reaper_service import World

from noetl_chassis.observability import instruments, names
from noetl_chassis.observability.names import Metric


def shown(metric: Metric) -> list[float]:
    """What a scrape would be told."""
    gauge = instruments._get_gauge(metric)  # a process has one telemetry, and a test no process
    return [float(value.value) for value in gauge._observe_values(CallbackOptions())]


async def test_a_reaper_that_leads_no_more_shows_nothing_of_before() -> None:
    world = World()
    item, two = world.reaper("one"), world.reaper("two")
    await item.sweep()
    instruments.set_gauge(names.COMMAND_BACKLOG, 900, labels={names.POOL: "p", names.LANE: "io"})
    assert shown(names.DLQ_MESSAGES) == [0]
    assert shown(names.COMMAND_BACKLOG)[-1:] == [900]
    world.clock.advance_by(9)
    assert await two.sweep()
    assert not await item.sweep()
    assert (shown(names.DLQ_MESSAGES), shown(names.COMMAND_BACKLOG)) == ([], [])
    assert shown(names.IS_LEADER) == [0]
