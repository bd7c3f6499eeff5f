"""Which functions of ours a function may come to, read from its code and not by running it."""

import inspect
from collections.abc import Callable, Iterator
from types import CodeType, ModuleType
from typing import Any


def list_reached_names(function: Callable[..., Any]) -> set[str]:
    """Name everything that a function may look up, in what it calls and so on.

    A name of a module that is looked up as an attribute counts as well. More is found than is
    called: every function of a class that is named.
    """
    waiting, visited, names = [inspect.unwrap(function)], set[Any](), set[str]()
    while waiting:
        current = waiting.pop()
        code = getattr(current, "__code__", None)
        if code is None or code in visited:
            continue
        visited.add(code)
        looked_up = set(_iterate_names(code))
        names |= looked_up
        for name in looked_up:
            value = current.__globals__.get(name)
            values = [value]
            if isinstance(value, ModuleType) and _is_ours(value.__name__):
                values += [getattr(value, attribute, None) for attribute in looked_up]
            for found in values:
                waiting += _list_functions(found)
    return names


def _iterate_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _iterate_names(constant)


def _list_functions(value: Any) -> list[Any]:
    if not _is_ours(str(getattr(value, "__module__", ""))):
        return []
    if inspect.isclass(value):
        return [inspect.unwrap(item) for item in vars(value).values() if inspect.isfunction(item)]
    unwrapped = inspect.unwrap(value) if callable(value) else value
    return [unwrapped] if inspect.isfunction(unwrapped) else []


def _is_ours(module: str) -> bool:
    return module.startswith("noetl_")
