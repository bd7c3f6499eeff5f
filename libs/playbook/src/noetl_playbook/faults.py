"""What may go wrong inside a template; everything else is a defect of ours."""

import re

import jinja2
import msgspec

from noetl_playbook.rendering import LimitExceededError

FAULTS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    RecursionError,
    MemoryError,
    re.error,
    msgspec.MsgspecError,
    LimitExceededError,
)
