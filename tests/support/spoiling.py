"""Bytes and messages that nearly are what they were."""

from random import Random
from typing import Any

import msgspec
from hypothesis import strategies as st

from noetl_contracts import codec

# What a leaf of a message may become: every size and kind that a reader might trust.
HOSTILE: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63) - 1, 1e308, -0.0),
    *(
        "",
        "0",
        "-1",
        "9" * 18,
        "9" * 19,
        "9" * 400,
        "٣",
        "a\x00b",
        "\ud7ff\U0010ffff",
        "x" * 70_000,
    ),
    *("../..", "noetl.ingest.>", "{{ 7 * 7 }}", "NaN", [], {}, [[]], {"": None}, {"a.b": [1]}),
)


def spoiled(whole: bytes) -> st.SearchStrategy[bytes]:
    """Draw bytes that were flipped, cut, doubled or overwritten here and there."""
    return st.builds(spoilt_by, st.randoms(), st.just(whole))


def spoilt_by(chance: Random, whole: bytes) -> bytes:
    """Flip, cut, double or overwrite bytes here and there."""
    data = bytearray(whole)
    for _ in range(chance.randint(1, 4)):
        at = chance.randint(0, max(len(data) - 1, 0))
        until = min(at + chance.randint(0, 40), len(data))
        match chance.choice(["flip", "cut", "double", "write", "end"]):
            case "flip" if data:
                data[at] ^= 1 << chance.randint(0, 7)
            case "cut":
                del data[at:until]
            case "double":
                data[at:at] = data[at:until]
            case "write":
                data[at:until] = chance.randbytes(chance.randint(0, 40))
            case _:
                del data[at:]
    return bytes(data)


def twisted_by(chance: Random, whole: bytes, *, within: str | None = None) -> bytes:
    """Keep the form of some JSON while one or two of its values become hostile ones.

    `within` names the top-level key below which they are.
    """
    value = codec.decode_json(whole)
    root = value if within is None else value[within]
    for _ in range(chance.randint(1, 2)):
        found = list(places(root))
        if not found:
            break
        holder, key = chance.choice(found)
        hostile = chance.choice(HOSTILE)
        if hostile is None and isinstance(holder, dict) and chance.random() < 1 / 2:
            del holder[key]
        else:
            holder[key] = hostile
    return msgspec.json.encode(value)


def places(value: Any) -> Any:
    """Yield every place of a value as its holder and key."""
    if isinstance(value, dict | list):
        keys = list(value) if isinstance(value, dict) else range(len(value))
        for key in keys:
            yield value, key
            yield from places(value[key])
