"""How the services behind the planner stand: what waits, and what their servers promise.

Each number comes from where the metric or `noetl doctor` takes it: the outbox's backlog, the
projectors' consumers, and the settings of the servers.
"""

from collections.abc import Awaitable
from typing import TypeVar

from litestar import get
from msgspec import Struct

from noetl_contracts.errors import Retryable
from noetl_messaging.streams import broker_durability, topology
from noetl_planner.api.http import services as api_services
from noetl_planner.api.http.services import ApiServices, Services
from noetl_planner.identity.permissions import Permission
from noetl_storage.ports import durability_ports

T = TypeVar("T")
# As the alert of the outbox has it (deploy/observability/alerts.yaml).
OUTBOX_OLD_S = 30.0
_PROJECTOR = topology.build_projector_consumer(index=0, count=1).partition("-")[0]


class OutboxView(Struct, frozen=True, kw_only=True):
    """How many committed messages wait to be published, and the age of the oldest in seconds."""

    rows: int
    oldest_s: float
    is_well: bool


class ProjectorView(Struct, frozen=True, kw_only=True):
    """What one projector has yet to project: messages of events, in its hands or before them."""

    consumer: str
    lag: int
    is_served: bool


class ServerSetting(Struct, frozen=True, kw_only=True):
    """A setting of a server; `way_out` says what is at risk where it is not as it must be.

    `is_well` is null where it is not known. `meaning` says what one that is well still costs.
    `at_risk_s` is of how many last seconds a failure of power may lose acknowledged messages.
    """

    name: str
    found: str
    is_well: bool | None
    way_out: str = ""
    meaning: str = ""
    at_risk_s: float = 0.0


class ServiceHealth(Struct, frozen=True, kw_only=True):
    """How the services stand; what could not be asked is null, and `problems` says why."""

    outbox: OutboxView | None
    projectors: list[ProjectorView] | None
    settings: list[ServerSetting] | None
    broker_settings: list[ServerSetting] | None
    problems: dict[str, str]


@get("/health/services", tags=["planner"])
async def show_service_health(services: Services) -> ServiceHealth:
    """Show what waits in the services of the installation, and how durable its servers are.

    It is of all tenants, and for administrators of the installation's own organization.
    """
    if not services.is_own_installation:
        raise api_services.build_forbidden_error(services.access, Permission.ADMINISTER)
    problems: dict[str, str] = {}
    return ServiceHealth(
        outbox=await _ask_part("outbox", _view_outbox(services), problems),
        projectors=await _ask_part("projectors", _list_projectors(services), problems),
        settings=await _ask_part("settings", _list_settings(services), problems),
        broker_settings=await _ask_part(
            "broker_settings", _list_broker_settings(services), problems
        ),
        problems=problems,
    )


async def _ask_part(name: str, asking: Awaitable[T], problems: dict[str, str]) -> T | None:
    """Wait for a part; a server that is away takes no other part with it."""
    try:
        return await asking
    except Retryable as failure:
        problems[name] = str(failure)
        return None


async def _view_outbox(services: ApiServices) -> OutboxView:
    rows, oldest_s = await services.messages.outbox_backlog.count_backlog()
    return OutboxView(rows=rows, oldest_s=round(oldest_s, 3), is_well=oldest_s <= OUTBOX_OLD_S)


async def _list_projectors(services: ApiServices) -> list[ProjectorView]:
    backlogs = await services.messages.backlogs.list_backlogs(topology.EVENTS)
    return [
        ProjectorView(
            consumer=name,
            lag=backlog.pending + backlog.unsettled,
            is_served=backlog.is_served,
        )
        for name, backlog in sorted(backlogs.items(), key=lambda item: (len(item[0]), item[0]))
        if name.startswith(f"{_PROJECTOR}-")
    ]


async def _list_settings(services: ApiServices) -> list[ServerSetting]:
    values = await services.history.durability.read_settings()
    return [
        ServerSetting(
            name=f"postgres {finding.name}",
            found=finding.value,
            is_well=finding.is_kept,
            way_out=finding.way_out,
        )
        for finding in durability_ports.judge_settings(values)
    ]


async def _list_broker_settings(services: ApiServices) -> list[ServerSetting]:
    settings = await services.messages.broker_settings.read_settings()
    return [
        ServerSetting(
            name=f"nats {finding.name}",
            found=finding.value,
            is_well=finding.is_kept,
            way_out=finding.way_out,
            meaning=finding.meaning,
            at_risk_s=finding.at_risk_s,
        )
        for finding in ([] if settings is None else broker_durability.judge_broker(settings))
    ]


ROUTES = [show_service_health]
