"""How large `ctx` may grow: it travels with every command."""

from collections.abc import Mapping
from typing import Any

from noetl_contracts import codec
from noetl_contracts.commands import COMMAND_BYTES_MAX
from noetl_contracts.errors import ErrorObject

CTX_BYTES_MAX = COMMAND_BYTES_MAX // 2


def too_large(step: str, message: str) -> ErrorObject:
    """Make the error of a value that no message carries."""
    return ErrorObject(kind="payload_too_large", code="TOO_LARGE", step=step, message=message)


def excess(ctx: Mapping[str, Any], patch: Mapping[str, Any], *, step: str) -> ErrorObject | None:
    """Return the error of writes that would make `ctx` too large, or None."""
    if not patch:
        return None
    size = len(codec.encode({**ctx, **patch}))
    if size <= CTX_BYTES_MAX:
        return None
    return too_large(
        step,
        f"step {step!r}: writing {', '.join(f'ctx.{key}' for key in patch)} would make ctx "
        f"{size} bytes long, {CTX_BYTES_MAX} is the limit: leave large values in the step's "
        "result and name them by the step",
    )
