"""Optional libraries of libraries that no service needs and every process would load."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hide_modules(*names: str) -> Iterator[None]:
    """Let imports within the block find these modules not installed; loaded ones are found.

    It holds for every thread, so it is for modules that are loaded as a process starts.
    """
    hidden = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None says: not installed
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name)
