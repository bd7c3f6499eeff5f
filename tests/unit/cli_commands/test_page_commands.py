"""Each call of `noetl` that a page shows is one that the command line takes."""

from pathlib import Path
from typing import Any

import pytest
import typer
from tests.support.page_fences import Fence, list_commands, list_fences, list_pages

from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command

from noetl_cli.__main__ import app

# Words of the samples that stand for a number.
NUMBERS = {"FROM": "1", "TO": "2", "SEQUENCE": "7"}


def parse_command(words: list[str]) -> None:
    """Parse the words as the command line does, and run nothing; raises `TyperException`."""
    name: str | None = "noetl"
    command: Any = get_command(app)
    context: Any = None
    rest = [NUMBERS.get(word, word) for word in words]
    if rest in (["-h"], ["--help"]):
        return
    try:
        while isinstance(command, TyperGroup):
            context = typer.Context(
                command, parent=context, info_name=name, **command.context_settings
            )
            name, command, rest = command.resolve_command(context, rest)
        command.make_context(name, rest, parent=context)
    except typer.Exit as end:
        assert end.exit_code == 0, words


@pytest.mark.parametrize("page", list_pages(), ids=lambda page: page.stem)
def test_the_commands_of_a_page_exist(page: Path) -> None:
    wrong = []
    for fence in list_fences(page, "console", "sh"):
        for words in list_commands(fence):
            try:
                parse_command(words)
            except TyperException as error:
                wrong.append(f"{fence.name}: noetl {' '.join(words)}: {error}")
    assert wrong == []


@pytest.mark.parametrize(
    "text", ["noetl rnu x.yaml", "noetl run x.yaml --sett a=1", "noetl replay diff ID one"]
)
def test_a_wrong_command_is_noticed(text: str) -> None:
    fence = Fence(page=Path(), line=1, language="sh", title="", text=f"{text}\n")
    (words,) = list_commands(fence)
    with pytest.raises(TyperException):
        parse_command(words)


def test_commands_are_found_between_others() -> None:
    text = "A=1 noetl up && noetl ls | head; noetl down > out.txt\n"
    fence = Fence(page=Path(), line=1, language="sh", title="", text=text)
    assert list(list_commands(fence)) == [["up"], ["ls"], ["down"]]
