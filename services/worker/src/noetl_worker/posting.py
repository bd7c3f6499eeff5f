"""Facts of one execution that are ready at about the same time travel as one message.

Whoever is ready first sends for all; whoever comes meanwhile goes with the next message. A letter
whose sender gives up before it was sent stays behind: under a lease that is lost nothing leaves.
"""

import asyncio

from msgspec import Struct, field

from noetl_contracts import facts, ids, subjects
from noetl_contracts.commands import Command
from noetl_contracts.facts import FactBatch
from noetl_contracts.ids import WorkerId
from noetl_messaging.ports import MESSAGE_BYTES_MAX, Message, Publisher

# What comes from the facts themselves; the rest of a message is small.
FACTS_BYTES_MAX = MESSAGE_BYTES_MAX * 3 // 4
# A message is named by all that it carries, so that only the very same one is the same.
LETTERS_MAX = 32
KEYS_SEPARATOR = "+"


class Letter(Struct, kw_only=True, eq=False):
    """Facts of one command, encoded; `key` names them, whatever they travel with."""

    key: str
    command: Command
    facts: list[bytes]
    is_stored: bool = False

    @property
    def size_bytes(self) -> int:
        """Return how much of a message it takes."""
        return sum(map(len, self.facts)) + len(self.facts)


class _Box(Struct, kw_only=True, eq=False):
    """What waits to be sent about one execution; the event ends the round that is on its way."""

    letters: list[Letter] = field(default_factory=list)
    round: asyncio.Event | None = None


class Post:
    """Sends letters of one worker to the planner: one message of an execution at a time."""

    def __init__(self, *, publisher: Publisher, producer: WorkerId, shard_count: int) -> None:
        self._publisher = publisher
        self._producer = producer
        self._shard_count = shard_count
        self._boxes: dict[str, _Box] = {}

    async def send(self, letter: Letter) -> None:
        """Return once the stream has stored a letter.

        Raises what the publisher raises when it was this letter's turn to send for all.
        """
        execution_id = letter.command.execution_id
        box = self._boxes.setdefault(execution_id, _Box())
        box.letters.append(letter)
        try:
            while not letter.is_stored:
                if box.round is None:
                    await self._send_round(box)
                else:
                    await box.round.wait()
        finally:
            if not letter.is_stored:
                box.letters.remove(letter)
            if not box.letters and self._boxes.get(execution_id) is box:
                del self._boxes[execution_id]

    async def _send_round(self, box: _Box) -> None:
        ended = box.round = asyncio.Event()
        try:
            # Whoever is ready in the same turn of the loop comes along.
            await asyncio.sleep(0)
            taken = _fitting(box.letters)
            await self._publisher.publish(self._message(taken))
            for one in taken:
                one.is_stored = True
            box.letters = [one for one in box.letters if not one.is_stored]
        finally:
            box.round = None
            ended.set()

    def _message(self, letters: list[Letter]) -> Message:
        first = letters[0]
        command = first.command
        batch = FactBatch(
            key=first.key,
            execution_id=command.execution_id,
            tenant_id=command.tenant_id,
            organization_id=command.organization_id,
            producer=self._producer,
            facts=[],
            traceparent=command.traceparent,
        )
        shard = ids.shard_of(command.execution_id, self._shard_count)
        return Message(
            subject=subjects.ingest(shard, command.tenant_id, command.organization_id),
            message_id=KEYS_SEPARATOR.join(one.key for one in letters),
            data=facts.encode_batch(batch, [fact for one in letters for fact in one.facts]),
            traceparent=command.traceparent,
        )


def _fitting(letters: list[Letter]) -> list[Letter]:
    """Return the oldest letters that fit one message: at least one."""
    count, room = 1, FACTS_BYTES_MAX - letters[0].size_bytes
    for one in letters[1:LETTERS_MAX]:
        room -= one.size_bytes
        if room < 0:
            break
        count += 1
    return letters[:count]
