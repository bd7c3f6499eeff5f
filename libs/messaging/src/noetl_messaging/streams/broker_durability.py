"""What a broker promises of the messages that it has acknowledged, and how to judge it."""

from typing import Protocol

from msgspec import Struct

# A stream is written to the disk at least so often.
SYNC_INTERVAL_MAX_S = 10.0
FILE = "file"
_NANOSECONDS = 1e9


class JetStreamConfig(Struct, frozen=True, kw_only=True):
    """How a server says that it stores: `sync_interval` is in nanoseconds, 0 if it does not say."""

    sync_interval: int = 0
    sync_always: bool = False

    @property
    def interval_s(self) -> float | None:
        """Return after how many seconds it writes to the disk: 0 is always, None not told."""
        if self.sync_always:
            return 0.0
        return self.sync_interval / _NANOSECONDS if self.sync_interval else None


class BrokerSettings(Struct, frozen=True, kw_only=True):
    """How streams are stored, by name, and how often they are written to the disk.

    `sync_interval_s` is that of the server that does it least often, 0 where each message is on
    the disk before it is acknowledged, and None where nobody may ask.
    """

    sync_interval_s: float | None
    storage_by_stream: dict[str, str]


class BrokerFinding(Struct, frozen=True, kw_only=True):
    """A setting as the broker has it: `is_kept` is None where it is not known.

    `meaning` says what it costs or risks, `way_out` what to set. `at_risk_s` is of how many last
    seconds a failure of power may lose acknowledged messages.
    """

    name: str
    value: str
    is_kept: bool | None
    meaning: str = ""
    way_out: str = ""
    at_risk_s: float = 0.0


class BrokerDurability(Protocol):
    """Reads the settings of a broker; one in memory has none."""

    async def read_settings(self) -> BrokerSettings | None:
        """Return them, None where there is no server. Raises `MessagingUnavailable`."""


def judge_broker(settings: BrokerSettings) -> list[BrokerFinding]:
    """Say of each setting whether messages that were acknowledged outlast a failure of power."""
    return [_judge_storage(settings.storage_by_stream), judge_interval(settings.sync_interval_s)]


def _judge_storage(storage_by_stream: dict[str, str]) -> BrokerFinding:
    lost_names = sorted(name for name, storage in storage_by_stream.items() if storage != FILE)
    return BrokerFinding(
        name="storage",
        value=f"memory: {', '.join(lost_names)}" if lost_names else FILE,
        is_kept=not lost_names,
        way_out="A restart of the server would lose every message of these streams. "
        "Remove them, and run: python -m noetl_messaging apply."
        if lost_names
        else "",
    )


def judge_interval(seconds: float | None) -> BrokerFinding:
    """Judge how long an acknowledged message may be in memory alone."""
    name = "sync_interval"
    if seconds is None:
        return BrokerFinding(
            name=name,
            value="not known",
            is_kept=None,
            way_out="Give the planner a user of the server's system account: "
            "NOETL_PLANNER_NATS_MONITOR_URL.",
        )
    if seconds == 0:
        meaning = "Every acknowledged message is on the disk."
        return BrokerFinding(name=name, value="always", is_kept=True, meaning=meaning)
    risk = (
        f"A power failure may lose the messages of the last {seconds:g} s: work is done again from "
        "the ledger, and executions that were started by messages are to be started again."
    )
    is_kept = seconds <= SYNC_INTERVAL_MAX_S
    return BrokerFinding(
        name=name,
        value=f"{seconds:g} s",
        is_kept=is_kept,
        meaning=risk,
        at_risk_s=seconds,
        way_out="" if is_kept else f"{risk} Set sync_interval to 1s, or to always.",
    )
