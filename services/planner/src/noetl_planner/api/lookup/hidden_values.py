"""Events as roles see them that may not read payloads: what happened, without the data."""

from typing import Any

import msgspec
from msgspec import inspect, structs

from noetl_contracts.events import EVENT_CLASSES
from noetl_contracts.ids import ExecutionId
from noetl_planner.api.http.services import ApiServices
from noetl_planner.api.lookup import execution_lookup
from noetl_planner.api.lookup.views import EventView
from noetl_planner.identity.permissions import Permission

_PLAIN_TYPES = (
    inspect.StrType,
    inspect.IntType,
    inspect.FloatType,
    inspect.BoolType,
    inspect.EnumType,
    inspect.LiteralType,
    inspect.NoneType,
    inspect.DateTimeType,
)


async def may_read_values(services: ApiServices, execution_id: ExecutionId) -> bool:
    """Tell whether who asks may read the payloads of an execution; raises a 404."""
    access = services.access
    if access.has_permission(Permission.READ):
        return True
    if not access.has_permission_somewhere(Permission.READ):
        return False
    row = await execution_lookup.get_execution_row(services, execution_id)
    return access.has_permission(Permission.READ, path=row["path"])


async def show_events(
    services: ApiServices, execution_id: ExecutionId, events: list[EventView]
) -> list[EventView]:
    """Return events as who asks may see them."""
    if await may_read_values(services, execution_id):
        return events
    return [hide_values(event) for event in events]


def hide_values(view: EventView) -> EventView:
    """Leave out of an event what may hold data: inputs, results, `ctx`, items and signals."""
    context = {name: value for name, value in view.context.items() if name in _SHOWN_FIELDS}
    return structs.replace(view, context=context, result=None, payload_ref=None)


def _list_shown_fields() -> frozenset[str]:
    """List the fields that are plain in each event that has them: what is new stays hidden."""
    plain_fields: set[str] = set()
    hidden: set[str] = set()
    for event_class in EVENT_CLASSES:
        for field in msgspec.structs.fields(event_class):
            plain = _is_plain(inspect.type_info(field.type))
            (plain_fields if plain else hidden).add(field.encode_name)
    return frozenset(plain_fields - hidden)


def _is_plain(kind: Any) -> bool:
    if isinstance(kind, inspect.UnionType):
        return all(_is_plain(item) for item in kind.types)
    if isinstance(kind, inspect.Metadata):
        return _is_plain(kind.type)
    return isinstance(kind, _PLAIN_TYPES)


_SHOWN_FIELDS = _list_shown_fields()
