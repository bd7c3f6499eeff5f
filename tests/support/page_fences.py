"""Fenced samples of documentation pages, and the commands and requests in them."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from msgspec import Struct

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_PROMPT = "$ "
_SEPARATOR = re.compile(r"\s(?:&&|\|\|?)\s|;\s")
_REDIRECTIONS = {">", ">>", "<", "2>", "&"}
_ASSIGNMENT = re.compile(r"\w+=.*")
_REQUEST = re.compile(
    r"(?:\b(GET|POST|PUT|DELETE) )?(?:http://[\w.]+:\d+|(?<![\w/]))(/api/[^\s\"'`)|,;]*)"
)


class Fence(Struct, frozen=True, kw_only=True):
    """One fenced block: its language, its title if it is a file, and its first line in the page."""

    page: Path
    line: int
    language: str
    title: str
    text: str

    @property
    def name(self) -> str:
        """Name the block in messages."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


class Request(Struct, frozen=True, kw_only=True):
    """A request that a page shows; without a method the page names the route alone."""

    method: str | None
    path: str
    parameters: tuple[str, ...]


def list_pages() -> list[Path]:
    """List the pages of docs/ and the front page."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def list_fences(page: Path, *languages: str) -> list[Fence]:
    """List the fenced blocks of a page in some languages."""
    text = page.read_text("utf-8")
    return [
        Fence(
            page=page,
            line=text.count("\n", 0, found.start()) + 1,
            language=found[1],
            title=found[2].strip(),
            text=found[3],
        )
        for found in _FENCE.finditer(text)
        if found[1] in languages
    ]


def list_commands(fence: Fence) -> Iterator[list[str]]:
    """Yield the words of each call of `noetl` in a block of `console` or `sh`."""
    for line in fence.text.replace("\\\n", " ").splitlines():
        if fence.language == "console" and not line.startswith(_PROMPT):
            continue
        for part in _SEPARATOR.split(line.removeprefix(_PROMPT)):
            words = _split_words(part)
            if words and words[0] == "noetl":
                yield words[1:]


def _split_words(text: str) -> list[str]:
    try:
        words = shlex.split(text, comments=True)
    except ValueError:
        # A part of a command in quotes, which this cuts; no page calls `noetl` in one.
        return []
    while words and _ASSIGNMENT.fullmatch(words[0]):
        words = words[1:]
    ends = [number for number, word in enumerate(words) if word in _REDIRECTIONS]
    return words[: ends[0]] if ends else words


def list_requests(page: Path) -> list[Request]:
    """List the requests to the API that a page names, in samples and in sentences."""
    found = []
    for match in _REQUEST.finditer(page.read_text("utf-8")):
        parts = urlsplit(match[2].rstrip(".:&"))
        found.append(
            Request(
                method=match[1],
                path=parts.path.rstrip("/"),
                parameters=tuple(
                    name for name, _ in parse_qsl(parts.query, keep_blank_values=True)
                ),
            )
        )
    return found
