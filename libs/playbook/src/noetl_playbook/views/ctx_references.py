"""Large values of `ctx`, stored as payloads (language reference, 4.7).

In `ctx` a marker replaces such a value; templates see a handle of it, or its text.
"""

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import msgspec

from noetl_contracts import codec
from noetl_contracts.json_values import DEPTH_MAX, is_nested_deeper
from noetl_contracts.payloads import PayloadRef
from noetl_playbook.views.payload_handle import PayloadHandle
from noetl_playbook.views.results import StoredResult

# The only key of a marker; nobody outside of the engine may write a value of this form.
KEY = "__noetl_kept__"
# Larger values are kept by reference.
VALUE_BYTES_MAX = 64 * 1024
# About the size of a marker: a smaller value is not worth one.
_MARKER_BYTES = 512
_OPAQUE = "opaque"
_OUTLINED = "outlined"

Find = Callable[[PayloadRef], Any]


def build_marker(reference: PayloadRef, value: Any) -> dict[str, Any]:
    """Build the marker that replaces a large value in `ctx`: its reference and its shape."""
    shape = _OUTLINED if isinstance(value, list | Mapping) else _OPAQUE
    return {KEY: {"ref": msgspec.to_builtins(reference), "shape": shape}}


def is_marker(value: Any) -> bool:
    """Return whether a value in `ctx` is a marker of a stored value."""
    return type(value) is dict and len(value) == 1 and KEY in value


def get_marker_reference(value: Mapping[str, Any]) -> PayloadRef:
    """Return the payload reference in a marker; raises `msgspec.ValidationError` for a bad one."""
    return codec.convert_value(value[KEY]["ref"], PayloadRef)


def show_markers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Show markers as people read them: with the reference of the value."""
    return {
        name: {"_ref": value[KEY]["ref"]} if is_marker(value) else value
        for name, value in values.items()
    }


def choose_large_values(values: Mapping[str, Any], *, inline_max: int) -> list[str]:
    """Choose what of a patch is kept by reference.

    Every value above 64 KiB is, or that is nested deeper than results may be, and then the largest
    until the rest is small enough for an event.
    """
    sizes = {name: len(codec.encode_json(value)) for name, value in values.items()}
    large_names = [
        name
        for name, size in sizes.items()
        if size > VALUE_BYTES_MAX or is_nested_deeper(values[name], DEPTH_MAX)
    ]
    inline_names = sorted(sizes.keys() - set(large_names), key=lambda name: (sizes[name], name))
    total = sum(sizes[name] for name in inline_names)
    while inline_names and total > inline_max and sizes[inline_names[-1]] > _MARKER_BYTES:
        name = inline_names.pop()
        total -= sizes[name]
        large_names.append(name)
    return large_names


class CtxView(MutableMapping[str, Any]):
    """`ctx` as templates see it: what is kept by reference is loaded when it is touched."""

    def __init__(self, values: Mapping[str, Any], find: Find) -> None:
        self._values = dict(values)
        self._find = find

    def __getitem__(self, key: str) -> Any:
        return view_value(self._values[key], self._find)

    def __setitem__(self, key: str, value: Any) -> None:
        self._values[key] = value

    def __delitem__(self, key: str) -> None:
        del self._values[key]

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def copy_view(self) -> "CtxView":
        """Return a copy; nothing is loaded for it."""
        return CtxView(self._values, self._find)


def view_ctx(values: dict[str, Any], find: Find) -> MutableMapping[str, Any]:
    """Show `ctx` to templates; as it is when it holds no marker."""
    return CtxView(values, find) if any(map(is_marker, values.values())) else values


def overlay_ctx(
    values: MutableMapping[str, Any], patch: Mapping[str, Any]
) -> MutableMapping[str, Any]:
    """Return a copy of a view with other values laid over it; nothing is loaded for it."""
    copy = values.copy_view() if isinstance(values, CtxView) else dict(values)
    copy.update(patch)
    return copy


def view_value(value: Any, find: Find) -> Any:
    """Show one value: text and the like as itself, lists and mappings as a handle."""
    if not is_marker(value):
        return value
    reference = get_marker_reference(value)
    if value[KEY].get("shape") == _OPAQUE:
        return find(reference)
    stored = StoredResult(reference=reference, locator=reference.uri, shape="list")
    return PayloadHandle(stored, load=lambda one: find(one.reference))


def load_plain(value: Any, find: Find) -> Any:
    """Give a value itself, loaded if it is kept by reference."""
    return find(get_marker_reference(value)) if is_marker(value) else value
