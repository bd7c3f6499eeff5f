"""`noetl schema`: JSON Schema of everything that crosses a process boundary."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from noetl_cli import render
from noetl_cli.failures import CliError, ExitCode
from noetl_contracts import codec, schemas, spelling
from noetl_playbook.schema import document_schema
from noetl_playbook.subscriptions import subscription_schema

PLAYBOOK, SUBSCRIPTION = "playbook", "subscription"


def schema(
    name: Annotated[str | None, typer.Argument(help="Which schema; all names without it.")] = None,
    *,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write every schema into this folder.")
    ] = None,
) -> None:
    """Print a schema, list their names, or write all of them into a folder."""
    if out is not None:
        _write(out, [name] if name is not None else _names())
    elif name is not None:
        render.line(_text(_find(name)))
    else:
        for known in _names():
            render.line(known)


def _names() -> list[str]:
    return sorted([PLAYBOOK, SUBSCRIPTION, *schemas.names()])


def _find(name: str) -> dict[str, Any]:
    if name == PLAYBOOK:
        return document_schema()
    if name == SUBSCRIPTION:
        return subscription_schema()
    try:
        return schemas.schema(name)
    except KeyError as error:
        raise CliError(
            f"There is no schema {name!r}.",
            way_out=spelling.hint(name, _names()) or "noetl schema lists them",
            exit_code=ExitCode.USAGE,
        ) from error


def _write(folder: Path, names: list[str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            (folder / f"{name}.json").write_text(_text(_find(name)) + "\n", encoding="utf-8")
    except OSError as error:
        raise CliError(
            f"{folder} cannot be written: {error.strerror}.",
            way_out="Choose another folder with --out.",
            exit_code=ExitCode.USAGE,
        ) from error
    render.note(f"{len(names)} schemas in {folder}")


def _text(value: dict[str, Any]) -> str:
    return msgspec.json.format(codec.text(value), indent=2)
