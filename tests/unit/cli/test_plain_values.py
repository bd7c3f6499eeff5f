"""Values that need a look at their type alone are taken as they are; Typer reads the others."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer import core

from noetl_cli.plain_values import NotPlainError, take_plain_value, use_plain_values


class Colour(StrEnum):
    """A choice."""

    RED = "red"
    BLUE = "blue"


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Typer as the command line uses it."""
    monkeypatch.setattr(core, "build_runtime_param", core.build_runtime_param)
    use_plain_values()


def called(*words: str) -> dict[str, Any]:
    """Call a command with one parameter of each kind, and return what it was given."""
    given: dict[str, Any] = {}
    app = typer.Typer()

    @app.command()
    def show(
        paths: Annotated[list[Path] | None, typer.Argument()] = None,
        *,
        count: Annotated[int, typer.Option("--count", min=1, max=9)] = 5,
        colour: Annotated[Colour, typer.Option("--colour")] = Colour.RED,
        flag: Annotated[bool, typer.Option("--flag/--no-flag")] = True,
        word: Annotated[str | None, typer.Option("--word")] = None,
        words: Annotated[list[str] | None, typer.Option("--words")] = None,
    ) -> None:
        given.update(paths=paths, count=count, colour=colour, flag=flag, word=word, words=words)

    typer.main.get_command(app).main(args=list(words), standalone_mode=False)
    return given


def test_plain_values_arrive_with_their_types() -> None:
    given = called("a", "/nowhere/b", "--no-flag", "--word", "7", "--words", "x")
    assert given["paths"] == [Path("a"), Path("/nowhere/b")]
    assert given["flag"] is False
    assert given["word"] == "7"
    assert given["words"] == ["x"]
    assert (given["count"], given["colour"]) == (5, Colour.RED)


def test_numbers_and_choices_are_read() -> None:
    given = called("--count", "7", "--colour", "blue")
    assert (given["count"], given["colour"]) == (7, Colour.BLUE)


@pytest.mark.parametrize(
    "words", [("--count", "10"), ("--count", "0"), ("--count", "x"), ("--colour", "green")]
)
def test_what_typer_refuses_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(typer.BadParameter):
        called(*words)


def test_other_types_are_left_to_typer() -> None:
    for value, annotation in (
        ("x", int),
        ("-1", int),
        ("1.5", float),
        ("red", Colour),
        ("x", dict),
        ("a\0b", Path),
    ):
        with pytest.raises(NotPlainError):
            take_plain_value(value, annotation)
