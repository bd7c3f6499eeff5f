"""What people read on a terminal, and programs in a pipe."""

import sys
from typing import TYPE_CHECKING, Any

import msgspec

from noetl_cli import settings
from noetl_cli.failures import CliError
from noetl_storage.deferred import Deferred

if TYPE_CHECKING:
    from rich import console as rich_console
else:
    # Most verbs print nothing with it, and it takes longer to load than they do.
    rich_console = Deferred("rich.console")

LINE_CHARACTERS_MAX = 500

# Characters that would move the cursor or ring the bell when data is shown as it is.
CONTROL = {code: f"\\x{code:02x}" for code in (*range(9), 11, 12, *range(14, 32), *range(127, 160))}


def console(*, is_error: bool = False) -> "rich_console.Console":
    """Open a console that colours only terminals whose owner wants colour."""
    stream = sys.stderr if is_error else sys.stdout
    is_plain = settings.is_plain(environ=settings.environment()) or not stream.isatty()
    return rich_console.Console(
        file=stream, no_color=is_plain, highlight=False, soft_wrap=True, emoji=False, markup=True
    )


def is_terminal() -> bool:
    """Tell whether a person watches."""
    return sys.stdout.isatty()


def safe(text: str) -> str:
    """Show control characters instead of obeying them."""
    return text.translate(CONTROL)


def one_line(text: str) -> str:
    """Make data harmless: one line, no control characters, bounded."""
    flat = safe(" ".join(text.split()))
    if len(flat) > LINE_CHARACTERS_MAX:
        return flat[: LINE_CHARACTERS_MAX - 1] + "…"
    return flat


def line(text: str) -> None:
    """Write one line as it is."""
    sys.stdout.write(safe(text) + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """Write one line beside the output proper."""
    sys.stderr.write(safe(text) + "\n")
    sys.stderr.flush()


def name_version(number: int | None) -> str:
    """Name a version of a playbook; those below zero are drafts."""
    if number is None:
        return ""
    return f"draft {-number}" if number < 0 else f"version {number}"


def json_line(value: Any) -> None:
    """Write one value as one line of JSON."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


def failure(error: CliError, *, as_json: bool = False) -> None:
    """Say what went wrong and what to do about it."""
    if as_json:
        json_line({"error": error.message, "way_out": error.way_out})
        return
    if settings.is_plain(environ=settings.environment()) or not sys.stderr.isatty():
        note(f"error: {error.message}")
        if error.way_out:
            note(f"  try: {error.way_out}")
        return
    out = console(is_error=True)
    out.print("error:", style="bold red", end=" ")
    out.print(safe(error.message), markup=False)
    if error.way_out:
        out.print("  try:", style="bold", end=" ")
        out.print(safe(error.way_out), markup=False)
