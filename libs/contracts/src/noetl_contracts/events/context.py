"""What happens to an execution's mutable state outside a step."""

from typing import Any

from msgspec import Struct


class CtxPatched(
    Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event_type", tag="ctx.patched"
):
    """Top-level `ctx` keys were written from outside."""

    patch: dict[str, Any]
    requested_by: str | None = None
