"""What a template gives, as it will be read again: the history keeps JSON, and nothing else."""

import math
from typing import Any

from noetl_contracts import codec
from noetl_playbook.templates.expressions import TemplateError, compile_value, shorten_template
from noetl_playbook.templates.scope import TemplateScope

_ATOMS = frozenset({int, bool, type(None)})


def render_as_json(source: Any, names: TemplateScope) -> Any:
    """Render a value as the history will tell of it; raises `TemplateError`.

    A decision that saw more than that would be another one when it is made after a restart.
    """
    return keep_as_json(compile_value(source).render(names), source)


def keep_as_json(value: Any, source: Any) -> Any:
    """Return what JSON keeps of a value that `source` gave; raises `TemplateError`."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is float:
        return value if math.isfinite(value) else None
    data = _encode_json(value, source)
    return value if kind is str else codec.decode_json(data)


def check_json_value(value: Any, source: Any = None) -> Any:
    """Return a value that `source` gave as it is, if JSON can keep it; raises `TemplateError`."""
    if type(value) not in _ATOMS:
        _encode_json(value, source)
    return value


def _encode_json(value: Any, source: Any) -> bytes:
    try:
        return codec.encode_json(value)
    except TypeError as error:
        raise _build_json_error(
            "a mapping has a key that is neither text nor a number", source
        ) from error
    except UnicodeEncodeError as error:
        raise _build_json_error("a text holds a part of a character alone", source) from error
    except (RecursionError, ValueError) as error:
        raise _build_json_error("the value cannot be written as JSON", source) from error


def _build_json_error(why: str, source: Any) -> TemplateError:
    is_text = isinstance(source, str)
    return TemplateError(
        why, expression=shorten_template(source) if is_text else "one of its templates"
    )
