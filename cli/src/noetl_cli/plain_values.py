"""Texts, flags and paths of the command line without Pydantic, which takes longer than most verbs.

Typer reads every value by Pydantic. What needs more than a look at its type goes on to do so:
choices and fractions that were written, paths that cannot be read, and what is out of bounds.
"""

import os
import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin

from typer import core
from typer._click import Context
from typer._coercion import RuntimeParam, TypeDescriptor, build_runtime_param

_DIGITS = re.compile("[0-9]{1,18}")
_PLAIN_TYPES = (str, bool, int, float, Path, Enum)


class NotPlainError(Exception):
    """A value needs more than a look at its type."""


@dataclass(frozen=True)
class PlainParameter(RuntimeParam):
    """Takes plain values as they are; Typer's own reader is built for others alone."""

    descriptor: TypeDescriptor

    def _coerce_value(self, value: Any, param: Any, ctx: Context) -> Any:
        try:
            return self._take_plain(value)
        except NotPlainError:
            reader = build_runtime_param(self.descriptor)
            return reader.coerce(value, param, ctx)

    def _take_plain(self, value: Any) -> Any:
        info = self.parameter_info
        has_rules = info.exists or info.resolve_path or info.allow_dash or info.path_type
        if info.parser is not None or has_rules or self.descriptor.is_file:
            raise NotPlainError
        origin: Any = get_origin(self.annotation)
        if origin is not list:
            plain_value = take_plain_value(value, self.annotation)
            # A default is within its own bounds.
            if isinstance(value, str) and not self._is_within_bounds(plain_value):
                raise NotPlainError
            return plain_value
        if not isinstance(value, list | tuple):
            raise NotPlainError
        (leaf,) = get_args(self.annotation)
        plain_value = [take_plain_value(item, leaf) for item in value]
        if not all(map(self._is_within_bounds, plain_value)):
            raise NotPlainError
        return plain_value

    def _is_within_bounds(self, value: Any) -> bool:
        least, most = self.parameter_info.min, self.parameter_info.max
        if isinstance(value, bool) or not isinstance(value, int):
            return True
        return (least is None or value >= least) and (most is None or value <= most)


def take_plain_value(value: Any, annotation: Any) -> Any:
    """Return a value of its type, a path or a whole number; raises `NotPlainError` for others."""
    if not isinstance(annotation, type) or not issubclass(annotation, _PLAIN_TYPES):
        raise NotPlainError
    if isinstance(value, annotation):
        return value
    # Of a file that is there Typer looks whether it can be read.
    if annotation is float and isinstance(value, int):
        return float(value)
    if annotation is int and isinstance(value, str) and _DIGITS.fullmatch(value):
        return int(value)
    if annotation is not Path or not isinstance(value, str) or "\0" in value:
        raise NotPlainError
    if os.path.lexists(value) and not os.access(value, os.R_OK):
        raise NotPlainError
    return Path(value)


def use_plain_values() -> None:
    """Let Typer's commands, and their help options, take plain values as they are."""
    core.build_runtime_param = _build_parameter  # type: ignore[attr-defined]  # it is Typer's own


def _build_parameter(descriptor: TypeDescriptor) -> RuntimeParam:
    """Make the reader of one option's values, as Typer's own does."""
    return PlainParameter(
        parameter_info=descriptor.parameter_info,
        annotation=descriptor.annotation,
        descriptor=descriptor,
    )
