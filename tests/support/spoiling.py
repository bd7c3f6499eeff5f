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


@st.composite
def spoiled(draw: st.DrawFn, whole: bytes) -> bytes:
    """Bytes that were flipped, cut, doubled or overwritten here and there."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        until = min(at + draw(st.integers(0, 40)), len(data))
        how = draw(st.sampled_from(["flip", "cut", "double", "write", "end"]))
        if how == "flip" and data:
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif how == "cut":
            del data[at:until]
        elif how == "double":
            data[at:at] = data[at:until]
        elif how == "write":
            data[at:until] = draw(st.binary(max_size=40))
        else:
            del data[at:]
    return bytes(data)


@st.composite
def twisted(draw: st.DrawFn, whole: bytes, *, within: str | None = None) -> bytes:
    """JSON whose form holds, while one or two of its values are hostile ones.

    `within` names the top-level key below which they are.
    """
    value = codec.decode(whole)
    root = value if within is None else value[within]
    for _ in range(draw(st.integers(1, 2))):
        places = list(_places(root))
        if not places:
            break
        holder, key = draw(st.sampled_from(places))
        hostile = draw(st.sampled_from(HOSTILE))
        if hostile is None and isinstance(holder, dict) and draw(st.booleans()):
            del holder[key]
        else:
            holder[key] = hostile
    return msgspec.json.encode(value)


def spoilt_by(chance: Random, whole: bytes) -> bytes:
    """Do as `spoiled` does, for what is not the same in each run and cannot be drawn."""
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
    """Do as `twisted` does, for what is not the same in each run and cannot be drawn."""
    value = codec.decode(whole)
    root = value if within is None else value[within]
    for _ in range(chance.randint(1, 2)):
        places = list(_places(root))
        if not places:
            break
        holder, key = chance.choice(places)
        hostile = chance.choice(HOSTILE)
        if hostile is None and isinstance(holder, dict) and chance.random() < 1 / 2:
            del holder[key]
        else:
            holder[key] = hostile
    return msgspec.json.encode(value)


def _places(value: Any) -> Any:
    """Yield every place of a value as its holder and key."""
    if isinstance(value, dict | list):
        keys = list(value) if isinstance(value, dict) else range(len(value))
        for key in keys:
            yield value, key
            yield from _places(value[key])
