"""What happens to an execution's mutable state outside a step."""

from typing import Any

import msgspec
from msgspec import Struct


class CtxPatched(
    Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event_type", tag="ctx.patched"
):
    """Top-level `ctx` keys were written from outside, and those `removed` are gone."""

    patch: dict[str, Any]
    requested_by: str | None = None
    removed: list[str] = msgspec.field(default_factory=list)
    request_id: str | None = None
