"""Reads the parts of a dossier out of its page, as the program in the page reads them."""

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from msgspec import DecodeError

from noetl_cli.audit.dossier import BYTES_MAX
from noetl_cli.errors import CliError, ExitCode
from noetl_contracts import codec

_PREFIX = "dossier-"
_WAY_OUT = "Name a file that `noetl evidence export ID --html` has written."


def read_blocks(file: Path) -> dict[str, list[str]]:
    """Return the texts of the blocks by their names; raises `CliError` for no dossier."""
    try:
        size = file.stat().st_size
        if size > BYTES_MAX:
            raise CliError(
                f"{file} has {size:,} bytes, more than a dossier may have.",
                way_out=_WAY_OUT,
                exit_code=ExitCode.USAGE,
            )
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failure:
        why = failure.strerror if isinstance(failure, OSError) else "it is no UTF-8"
        raise CliError(
            f"{file} cannot be read: {why}.", way_out=_WAY_OUT, exit_code=ExitCode.USAGE
        ) from failure
    reader = _BlockReader()
    reader.feed(text)
    reader.close()
    if not reader.texts_by_name:
        raise CliError(f"{file} is no dossier.", way_out=_WAY_OUT, exit_code=ExitCode.USAGE)
    return reader.texts_by_name


def decode_block(text: str | None) -> Any:
    """Decode a block; None for one that is missing, or is no JSON."""
    if text is None:
        return None
    try:
        return codec.decode_json(text)
    except (DecodeError, RecursionError):
        return None


class _BlockReader(HTMLParser):
    """Gathers the texts of elements whose ids begin as those of blocks do."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.texts_by_name: dict[str, list[str]] = {}
        self._texts: list[str] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin a block; an element of another kind with its id counts as an empty one."""
        found = dict(attrs).get("id") or ""
        self._texts = None
        if found.startswith(_PREFIX):
            texts = self.texts_by_name.setdefault(found.removeprefix(_PREFIX), [])
            texts.append("")
            self._texts = texts if tag == "script" else None

    def handle_data(self, data: str) -> None:
        """Take a piece of the text of a block."""
        if self._texts is not None:
            self._texts[-1] += data

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002 - the parser names it
        """End a block."""
        self._texts = None
