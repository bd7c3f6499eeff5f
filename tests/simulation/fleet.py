"""Processes of every service: started, killed without a last word, held back, started again."""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from tests.simulation.fate import Fate
from tests.simulation.virtual import OWNER, VirtualClock, VirtualLoop
from tests.simulation.wires import Wire, Wired

from noetl_chassis.identity import NODES_MAX, SnowflakeIds

if TYPE_CHECKING:
    from tests.simulation.witness import Witness

_POSTS_MAX = 32
_AWAY_S = 6.0
_HELD_S = 15.0
_WRONG_S = 3.0

Serve = Callable[["Process"], Awaitable[None]]


class Process:
    """One life of a service's process: what runs in its name, and its wires."""

    def __init__(
        self, name: str, *, node: int, loop: VirtualLoop, fate: Fate, witness: "Witness"
    ) -> None:
        self.name = name
        self.node = node
        self.fate = fate
        self.witness = witness
        self.loop = loop
        self.stop = asyncio.Event()
        ahead_s = (fate.chance.random() * 2 - 1) * _WRONG_S if fate.chance.random() < 0.3 else 0.0
        self.clock = VirtualClock(loop, ahead_s=0.0 if fate.is_healed else ahead_s)
        self.snowflake = SnowflakeIds(node=node, clock=self.clock)
        self.is_dead = False
        # Calls of its that are on their way, and arrive without it.
        self.strays: list[asyncio.Task[None]] = []
        self.on_death: Callable[[], None] | None = None
        self._cut_until: dict[str, float] = {}
        self._held: list[asyncio.Handle] | None = None
        # What will never run again stays here: nothing of a killed process is cleaned up.
        self._remains: list[asyncio.Handle] = []
        self._crash_in = fate.next_strike("crash")
        self._pause_in = fate.next_strike("pause")

    def admits(self, handle: asyncio.Handle) -> bool:
        """Tell whether the process goes on with this, or dies or stands still before it."""
        if self.is_dead:
            self._remains.append(handle)
            return False
        if self._held is not None:
            self._held.append(handle)
            return False
        if self.fate.is_healed:
            return True
        self._crash_in -= 1
        self._pause_in -= 1
        if self._crash_in <= 0:
            self._remains.append(handle)
            self.kill()
            return False
        if self._pause_in <= 0:
            self._pause_in = self.fate.next_strike("pause")
            self._hold(handle)
            return False
        return True

    def kill(self) -> None:
        """End without a last word."""
        self.fate.count("crash")
        self.fate.note(self.name, "is killed")
        self.is_dead = True
        if self.on_death is not None:
            self.on_death()

    def cut_off(self, server: str, seconds: float) -> None:
        """Let nothing pass between this process and a server for a while."""
        self.fate.note(self.name, "is cut off from", server)
        self._cut_until[server] = self.loop.time() + seconds

    def cut_for(self, server: str) -> float:
        """Return for how many seconds more a server is out of reach."""
        return max(0.0, self._cut_until.get(server, 0.0) - self.loop.time())

    def is_cut_off(self, server: str) -> bool:
        """Tell whether a server is out of reach."""
        return not self.fate.is_healed and self.cut_for(server) > 0.0

    def wired(self, target: Any, server: str) -> Any:
        """Put a port of a server at the end of this process's wire."""
        return Wired(target, Wire(self, server))

    def _hold(self, handle: asyncio.Handle) -> None:
        self.fate.count("pause")
        self.fate.note(self.name, "stands still")
        self.witness.held.add(self.name)
        self._held = [handle]
        seconds = self.fate.chance.random() * _HELD_S
        self.loop.call_later(seconds, self.go_on, context=contextvars.Context())

    def go_on(self) -> None:
        """Run on, as if no time had passed."""
        held, self._held = self._held, None
        if held:
            self.fate.note(self.name, "goes on")
            self.loop.again(held)


class Post:
    """A place that one process at a time fills; another one follows when it has died."""

    def __init__(
        self, name: str, serve: Serve, *, loop: VirtualLoop, fate: Fate, witness: "Witness"
    ) -> None:
        self.name = name
        self.process: Process | None = None
        self._serve = serve
        self._loop = loop
        self._fate = fate
        self._witness = witness
        self._lives = 0
        self._is_over = False
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, *, node: int) -> None:
        """Start a process; it starts again after whatever ended it."""
        self._lives += 1
        process = Process(
            f"{self.name}.{self._lives}",
            node=(node + self._lives * _POSTS_MAX) % NODES_MAX,
            loop=self._loop,
            fate=self._fate,
            witness=self._witness,
        )
        process.on_death = lambda: self._follow(node)
        self.process = process
        context = contextvars.Context()
        context.run(OWNER.set, process)
        self._tasks.append(self._loop.create_task(self._run(process, node), context=context))

    def bury(self) -> None:
        """Let nothing follow any more."""
        self._is_over = True
        if self.process is not None:
            self.process.is_dead = True

    async def _run(self, process: Process, node: int) -> None:
        try:
            await self._serve(process)
        except Exception as failure:  # noqa: BLE001 - whatever ends a process, another follows
            self._witness.process_ended(process.name, failure)
        if not process.is_dead and not process.stop.is_set():
            process.is_dead = True
            self._follow(node)

    def _follow(self, node: int) -> None:
        if self._is_over:
            return
        delay_s = 0.5 if self._fate.is_healed else self._fate.chance.random() * _AWAY_S
        self._loop.call_later(delay_s, lambda: self.begin(node=node), context=contextvars.Context())
