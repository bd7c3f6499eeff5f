"""Pages whose samples run: files are written, commands are called, and their output is compared.

A fence with a `title` is a file. In a fence of kind `console` a line that begins with `$ ` is a
command, and what follows is what it prints. `...` stands for any text within a line, alone for any
lines. `ID` stands for the execution that a command before has started, `APPROVAL` for the approval
and `ADDRESS` for the webhook's address that one has named.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

_FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NAMED = {
    "ID": re.compile(r"^(?:execution )?(\d{18})(?: of .*)?$", re.MULTILINE),
    "APPROVAL": re.compile(r"noetl approve (\S+)"),
    "ADDRESS": re.compile(r"^POST (\S+) starts", re.MULTILINE),
}
_PROMPT = "$ "
_COMMAND_S = 150.0


class File(Struct, frozen=True):
    """A file that the page shows."""

    name: str
    text: str


class Command(Struct, frozen=True):
    """A command of the page, and the lines that it prints."""

    text: str
    expected: str


def read_page(page: Path) -> Iterator[File | Command]:
    """Yield what a reader of the page does, in its order."""
    for kind, title, body in _FENCE.findall(page.read_text("utf-8")):
        if title:
            yield File(title, body)
        elif kind == "console":
            for part in re.split(r"^(?=\$ )", body, flags=re.MULTILINE):
                command, _, expected = part.partition("\n")
                if command:
                    assert command.startswith(_PROMPT), f"{page.name}: {command!r} is no command"
                    yield Command(command.removeprefix(_PROMPT), expected)


class Reader:
    """Someone who does in a folder what pages say; `close` ends what runs in the background."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self._folder = folder
        programs = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
        shown = {"NO_COLOR": "1", "COLUMNS": "200"}
        config = {"NOETL_CONFIG": str(folder / ".config")}
        self._environ = {**os.environ, **config, **environ, **shown, "PATH": programs}
        # The API asks who calls it, as it asks those who read the page.
        self._environ.pop("NOETL_AUTH", None)
        self._running: list[subprocess.Popen[bytes]] = []
        self._said: dict[str, str] = {}

    def follow(self, page: Path) -> Iterator[str]:
        """Do all of a page; yield what prints something else than the page says."""
        for part in read_page(page):
            if isinstance(part, File):
                (self._folder / part.name).write_text(part.text)
            elif part.text.endswith("&"):
                self.begin(part.text.removesuffix("&"))
            else:
                yield from self._call(part, page)

    def run(self, command: str) -> str:
        """Call a command of the shell, and return what it prints on both outputs."""
        done = subprocess.run(  # noqa: S602 - a command of our own page
            command,
            shell=True,
            cwd=self._folder,
            env=self._environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_COMMAND_S,
            check=False,
        )
        return done.stdout

    def close(self) -> None:
        """End what commands have left running."""
        for process in self._running:
            process.terminate()
            process.wait(60)

    def begin(self, text: str) -> None:
        """Begin a command that runs until `close`."""
        self._running.append(
            subprocess.Popen(  # noqa: S602 - a command of our own page
                f"exec {text}", shell=True, cwd=self._folder, env=self._environ
            )
        )

    def _call(self, command: Command, page: Path) -> Iterator[str]:
        text, expected = self._filled(command.text), self._filled(command.expected)
        printed = self.run(text)
        for name, pattern in _NAMED.items():
            if match := pattern.search(printed):
                self._said[name] = match[1]
        if not matches(printed, expected):
            yield f"{page.name}: $ {text}\n--- prints\n{printed}\n--- the page says\n{expected}"

    def _filled(self, text: str) -> str:
        for name, said in self._said.items():
            text = re.sub(rf"\b{name}\b", said, text)
        return text


def matches(printed: str, expected: str) -> bool:
    """Compare the words of each line; without expected lines anything will do."""
    lines = [_words(line) for line in expected.rstrip().splitlines()]
    if not lines:
        return True
    pattern = "".join(
        r"(?:.*\n)*?" if line == "..." else ".*".join(map(re.escape, line.split("..."))) + r"\n"
        for line in lines
    )
    found = "".join(f"{_words(line)}\n" for line in printed.rstrip().splitlines())
    return re.fullmatch(pattern, found) is not None


def _words(line: str) -> str:
    return " ".join(line.split())
