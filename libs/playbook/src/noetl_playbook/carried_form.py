"""Whether what came as a carried result has the form of one, before anybody relies on it."""

from typing import Any, Literal

import msgspec

from noetl_contracts import codec
from noetl_contracts.errors import ResultMalformed
from noetl_contracts.payloads import PayloadRef, ResultEnvelope
from noetl_playbook.canonical import Canonical
from noetl_playbook.carried import LOOP, PIPELINE
from noetl_playbook.parts import PARTS, Part
from noetl_playbook.results import LoopResult, PipelineResult

_FANIN = "fanin"


class _Context(Canonical, frozen=True, kw_only=True):
    """What `carried` and its readers take out of a context; what else is there nobody reads."""

    shape: Literal["pipeline", "loop"] = "pipeline"
    fields: dict[str, Any] = msgspec.field(default_factory=dict)
    store: str = "auto"
    preview: str | None = None
    columns: list[Any] | None = None
    length: int | None = None
    is_inline: bool = False
    notes: list[str] = msgspec.field(default_factory=list)
    ttl_s: float | None = None


class _Parts(Canonical, frozen=True, kw_only=True):
    """Where a loop's outcome keeps its parts."""

    ref: PayloadRef | None = None
    inline: list[Part] = msgspec.field(default_factory=list)


def check(result: ResultEnvelope) -> None:
    """Raise `ResultMalformed` for an envelope that cannot be shown as a result.

    What is kept by reference is judged when it is read.
    """
    try:
        context = codec.convert(result.context, _Context)
        is_loop = context.shape == LOOP
        if is_loop:
            _check_fanin(context.fields.get(_FANIN))
        if result.reference is None:
            data = result.context.get("data", {})
            kept = codec.convert(data, LoopResult if is_loop else PipelineResult)
            if isinstance(kept, LoopResult):
                _check_fanin(kept.fanin)
    except msgspec.ValidationError as failure:
        shape = str(result.context.get("shape", PIPELINE))[:40]
        raise ResultMalformed(f"this is no result of the shape {shape!r}: {failure}") from failure


def _check_fanin(counters: Any) -> None:
    if isinstance(counters, dict):
        codec.convert(counters.get(PARTS, {}), _Parts)
