"""What may go wrong inside a template; everything else asks for something, or is a defect of ours.

A filter of a library answers a bad argument with whatever it likes, be it an assertion or the
operating system's word for a date that it does not know. So every error of Python's own is a fault
of the template here, and only what the engine itself raises goes past: `Needed`, above all.
"""

import re

import jinja2
import msgspec

from noetl_playbook.templates.rendering import LimitExceededError

_MESSAGE_CHARACTERS_MAX = 1_000

FAULTS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    AssertionError,
    NameError,
    RuntimeError,
    OSError,
    MemoryError,
    BufferError,
    EOFError,
    ReferenceError,
    StopIteration,
    SyntaxError,
    SystemError,
    re.error,
    msgspec.MsgspecError,
    LimitExceededError,
)


def readable(message: str) -> str:
    """Write what went wrong on one line that any event can hold."""
    text = " ".join(message[:_MESSAGE_CHARACTERS_MAX].split())
    return text.encode("utf-8", "backslashreplace").decode()
