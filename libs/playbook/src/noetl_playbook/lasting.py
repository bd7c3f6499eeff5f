"""What a template gives, as it will be read again: the history keeps JSON, and nothing else."""

import math
from typing import Any

from noetl_contracts import codec
from noetl_playbook.expressions import TemplateError, compile_value, shortened
from noetl_playbook.scope import Scope

_ATOMS = frozenset({int, bool, type(None)})


def rendered(source: Any, names: Scope) -> Any:
    """Render a value as the history will tell of it; raises `TemplateError`.

    A decision that saw more than that would be another one when it is made after a restart.
    """
    return lasting(compile_value(source).render(names), source)


def lasting(value: Any, source: Any) -> Any:
    """Return what JSON keeps of a value that `source` gave; raises `TemplateError`."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is float:
        return value if math.isfinite(value) else None
    data = _encoded(value, source)
    return value if kind is str else codec.decode(data)


def checked(value: Any, source: Any = None) -> Any:
    """Return a value that `source` gave as it is, if JSON can keep it; raises `TemplateError`."""
    if type(value) not in _ATOMS:
        _encoded(value, source)
    return value


def _encoded(value: Any, source: Any) -> bytes:
    try:
        return codec.encode(value)
    except TypeError as error:
        raise _fault("a mapping has a key that is neither text nor a number", source) from error
    except UnicodeEncodeError as error:
        raise _fault("a text holds a part of a character alone", source) from error
    except (RecursionError, ValueError) as error:
        raise _fault("the value cannot be written as JSON", source) from error


def _fault(why: str, source: Any) -> TemplateError:
    is_text = isinstance(source, str)
    return TemplateError(why, expression=shortened(source) if is_text else "one of its templates")
