"""Every port as a process reaches it: each call travels, and may be lost on either way."""

import contextvars
import inspect
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from noetl_messaging.streams.errors import MessagingUnavailable
from noetl_messaging.streams.ports import Consumer, Delivery, Hints, Streams
from noetl_storage.ports.errors import StorageUnavailable
from noetl_storage.ports.ledger_ports import Instances, Projections, ShardLeases

if TYPE_CHECKING:
    from tests.simulation.fleet import Process

_ERRORS: dict[str, type[Exception]] = {
    "ledger": StorageUnavailable,
    "broker": MessagingUnavailable,
    "payloads": StorageUnavailable,
}


def _names(*methods: Callable[..., Any]) -> frozenset[str]:
    return frozenset(method.__name__ for method in methods)


# Calls that are hints: they fail for nobody.
_HINTS = _names(Hints.notify, Hints.broadcast)
# What may be answered from an earlier reading: views that promise no more than that.
STALE = _names(
    Instances.list_live_instances,
    Streams.list_queues,
    Projections.list_overdue,
    Projections.list_stalled,
    Projections.list_overdue_waits,
    Projections.list_executions_behind,
)
_LEASES = _names(ShardLeases.extend_leases, Delivery.extend_ack_wait)
# Calls whose answers are not written down: they are many, and follow from the others.
_SILENT = (
    _HINTS
    | _LEASES
    | _names(
        Consumer.fetch_batch,
        Instances.register_instance,
        Instances.claim_role,
        Instances.list_live_instances,
        Streams.list_queues,
    )
)
# What processes without work call as well: a line that breaks there breaks nothing.
_IDLE = _SILENT - _LEASES

_COMMANDS = "noetl.commands."
_NEAR_S = 0.004
_FAR_S = 0.4
# How long anybody waits for an answer.
_PATIENCE_S = 10.0


class Wire:
    """The way between one process and one server."""

    def __init__(self, process: "Process", server: str) -> None:
        self.process = process
        self.server = server
        self._fate = process.fate

    def check(self, name: str) -> None:
        """Fail a call that does not arrive."""
        if name in _HINTS:
            return
        if self.process.is_cut_off(self.server) or self._fate.happens("refused"):
            raise _ERRORS[self.server](f"{self.server} did not take {name}")

    async def travel(self) -> None:
        """Take the time of one way."""
        is_slow = self._fate.happens("slow")
        share = self._fate.chance.random()
        await self.process.loop.alarm(share * (_FAR_S if is_slow else _NEAR_S))

    async def call(self, name: str, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Make one call: there, its effect, and back."""
        fate, process = self._fate, self.process
        if name in _HINTS and (process.is_cut_off(self.server) or fate.happens("lost_hint")):
            return None
        await self.travel()
        if name not in _IDLE and fate.happens("cut"):
            process.cut_off(self.server, fate.cut_s())
        if name not in _HINTS and process.is_cut_off(self.server) and fate.happens("stranded"):
            return await self._stranded(name, call)
        self.check(name)
        answer = await call()
        if name not in _SILENT:
            fate.note(process.name, name)
        await self.travel()
        if name not in _HINTS and (process.is_cut_off(self.server) or fate.happens("lost_reply")):
            raise _ERRORS[self.server](f"{self.server} did not answer {name}")
        return answer

    async def _stranded(self, name: str, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Let a call wait on a broken line: it arrives when the line is whole, whoever is left."""
        loop, fate, process = self.process.loop, self._fate, self.process
        answered = loop.alarm(_PATIENCE_S)
        outcome: list[Any] = []
        arrives_s = process.cut_for(self.server) + fate.chance.random() * _FAR_S

        async def arrive() -> None:
            await loop.alarm(arrives_s)
            try:
                outcome.append(await call())
                fate.note(process.name, name, "late")
            except Exception as failure:  # noqa: BLE001 - it belongs to whoever still waits
                outcome.append(failure)
            if not answered.done():
                answered.set_result(None)

        # It is on its way: what becomes of the process changes nothing.
        process.strays.append(loop.create_task(arrive(), context=contextvars.Context()))
        await answered
        if not outcome:
            raise _ERRORS[self.server](f"{self.server} did not answer {name} in time")
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return outcome[0]


class Wired:
    """A port at the end of a wire; what it is told is shown to the witness first."""

    def __init__(self, target: Any, wire: Wire) -> None:
        self._target = target
        self._wire = wire
        self._seen: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if not inspect.iscoroutinefunction(found):
            return found
        wire, witness = self._wire, self._wire.process.witness
        target = self._target

        async def called(*args: Any, **kwargs: Any) -> Any:
            sent_at = wire.process.fate.now()

            async def effect() -> Any:
                witness.sent_at = sent_at
                witness.before(wire.process.name, target, name, args, kwargs)
                answer = await found(*args, **kwargs)
                witness.after(wire.process.name, target, name, args, kwargs, answer)
                return answer

            answer = await wire.call(name, effect)
            return self._perhaps_stale(name, answer) if name in STALE else answer

        setattr(self, name, called)
        return called

    def _perhaps_stale(self, name: str, answer: Any) -> Any:
        earlier = self._seen.get(name)
        if earlier is not None and self._wire.process.fate.happens("stale"):
            return earlier
        self._seen[name] = answer
        return answer


class WiredConsumer:
    """A consumer whose deliveries are settled over the wire as well."""

    def __init__(self, target: Any, wire: Wire) -> None:
        self._target = target
        self._wire = wire

    async def fetch_batch(self, *, messages_max: int, wait_s: float) -> list[Any]:
        """Return what came; what is lost on its way comes again after the ack wait."""
        wire, fate = self._wire, self._wire.process.fate
        found = await wire.call(
            Consumer.fetch_batch.__name__,
            lambda: self._target.fetch_batch(messages_max=messages_max, wait_s=wait_s),
        )
        for item in found:
            self._note(item)
        return [Wired(item, wire) for item in found if not fate.happens("lost_delivery")]

    def _note(self, delivery: Any) -> None:
        process = self._wire.process
        if delivery.subject.startswith(_COMMANDS):
            handed = (process.name, process.fate.now())
            process.witness.handed[str(delivery.stream_sequence)] = handed

    def wake_fetch(self) -> None:
        """Call the process back from its fetch."""
        self._target.wake_fetch()

    async def count_pending(self) -> tuple[int, int]:
        """Return how the consumer stands."""
        return await self._wire.call("pending", self._target.count_pending)

    async def close(self) -> None:
        """Leave: nothing comes that is not fetched."""
        await self._target.close()
