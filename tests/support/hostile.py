"""Fields of a task that hold what nobody meant, and what a tool makes of them."""

from collections.abc import Iterable, Iterator
from typing import Any

from tests.support.working import Bench

from noetl_worker.tools.calls.call import Call

HOSTILE: list[Any] = [
    *(None, True, 0, -1, 2**70, 1.5, float("nan"), float("inf"), "", " ", "x", "²", "a\x00b"),
    *("\ud800", "{{ x }}", "../..", "noetl://", "s3://b/k", "http://[", "-1s", "x" * 70_000),
    *([], [1], [None], ["x"], [[]], [{}], [{"a": []}], {}, {"a": 1}, {"a": None}, {"": {}}),
    *({"kind": "result_ref"}, {"kind": "result_ref", "sha256": 5, "bytes": "many"}, {1: 2}),
    *({"type": 5}, {"type": "postgres"}, {"type": "data", "data": 5}),
    *([{1: 2}], {"columns": 5, "rows": [[1]]}, {"columns": ["a"], "rows": 5}),
]


def spoilt(
    bases: Iterable[dict[str, Any]], names: Iterable[str], inner: Iterable[str] = ()
) -> Iterator[dict[str, Any]]:
    """Each base with every field, and what stands inside of `inner`, replaced by each value."""
    fields, wholes = list(names), list(inner)
    for base in bases:
        for field in fields:
            for value in HOSTILE:
                yield {**base, field: value}
        for field in wholes:
            for name in base[field]:
                for value in HOSTILE:
                    yield {**base, field: {**base[field], name: value}}


async def defect(worker: Bench, call: Call) -> str | None:
    """Run a call, and say what of it is a defect."""
    shown = ascii(call.fields)[:300]
    try:
        outcome = await worker.tools.run(call)
    except UnicodeEncodeError:
        # The lane knows what it means, of whatever tool.
        return None
    except Exception as problem:  # noqa: BLE001 - whatever it is, a defect
        return f"{shown}: {problem!r}"
    if outcome.error is not None and outcome.error.kind == "internal":
        return f"{shown}: {outcome.error.message}"
    return None
