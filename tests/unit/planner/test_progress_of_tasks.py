"""Who follows an execution hears how far its tasks are; what is no progress is dropped."""

from typing import Any

from litestar.response import ServerSentEventMessage
from tests.support.api import ApiWorld, beginning, ending
from tests.support.polling import eventually
from tests.support.storage import an_execution

from noetl_chassis.clock import SystemClock
from noetl_contracts import codec, subjects
from noetl_contracts.commands.task_metrics import (
    BYTES_MAX,
    SparkProgress,
    StageProgress,
    StepProgress,
)
from noetl_contracts.ids import CommandId
from noetl_messaging.memory.broker import MemoryBroker
from noetl_messaging.streams import topology
from noetl_planner.api.watch.event_stream import PROGRESS, EventStream, HistoryFollower

EXECUTION = an_execution()


def progress_of(command: str, **spark: Any) -> StepProgress:
    return StepProgress(
        step="load",
        command_id=CommandId(command),
        attempt=1,
        spark=SparkProgress(phase="job", seconds=3.5, **spark),
    )


async def followed(*, has_hints: bool, told: list[bytes]) -> list[ServerSentEventMessage]:
    """All messages of an execution during which something is told."""
    world = ApiWorld()
    broker = MemoryBroker(topology.declare_topology(shard_count=1), SystemClock())
    await world.append(EXECUTION, beginning())
    hints = broker if has_hints else None
    pages = EventStream(
        HistoryFollower(world.services(), EXECUTION), hints=hints
    ).iterate_messages()
    messages = await anext(pages)
    subject = subjects.build_progress_hint(EXECUTION)

    async def is_heard() -> bool:
        return bool(broker._listeners_by_subject.get(subject)) or not has_hints

    await eventually(is_heard)
    for data in told:
        await broker.broadcast(subject, data)
    await world.append(EXECUTION, ending())
    messages += [message async for page in pages for message in page]
    assert not broker._listeners_by_subject.get(subject)
    return messages


async def test_the_latest_progress_of_each_command_comes_between_the_events() -> None:
    early, late, other = (
        progress_of("7", jobs=1),
        progress_of("7", jobs=2, stages=(StageProgress(4, 45, 200),)),
        progress_of("8"),
    )
    messages = await followed(
        has_hints=True, told=[codec.encode_json(item) for item in (early, other, late)]
    )
    told = [message for message in messages if message.event == PROGRESS]
    assert [codec.decode_as(str(item.data), StepProgress) for item in told] == [other, late]
    assert [item.id for item in told] == [None, None]
    assert messages[-1].event == "end"


async def test_without_the_wish_for_it_nothing_but_events_comes() -> None:
    messages = await followed(has_hints=False, told=[codec.encode_json(progress_of("7"))])
    assert PROGRESS not in {message.event for message in messages}


async def test_hints_that_are_no_progress_end_nothing() -> None:
    long = codec.encode_json(progress_of("7" * BYTES_MAX))
    messages = await followed(has_hints=True, told=[b"", b"{", b'{"step": 5}', b"\xff", long])
    assert PROGRESS not in {message.event for message in messages}
    assert messages[-1].event == "end"
