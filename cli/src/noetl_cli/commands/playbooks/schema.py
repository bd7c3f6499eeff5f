"""`noetl schema`: JSON Schema of everything that crosses a process boundary."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from noetl_cli import terminal_output
from noetl_cli.errors import CliError, ExitCode
from noetl_contracts import codec, spelling
from noetl_contracts.requests import boundary_schemas
from noetl_playbook.parse.subscriptions import build_subscription_schema
from noetl_playbook.schema import build_document_schema

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
        _write_schemas(out, [name] if name is not None else _list_schema_names())
    elif name is not None:
        terminal_output.print_text(_build_schema_text(_get_schema(name)))
    else:
        for schema_name in _list_schema_names():
            terminal_output.print_line(schema_name)


def _list_schema_names() -> list[str]:
    return sorted([PLAYBOOK, SUBSCRIPTION, *boundary_schemas.list_schema_names()])


def _get_schema(name: str) -> dict[str, Any]:
    if name == PLAYBOOK:
        return build_document_schema()
    if name == SUBSCRIPTION:
        return build_subscription_schema()
    try:
        return boundary_schemas.build_json_schema(name)
    except KeyError as error:
        raise CliError(
            f"There is no schema {name!r}.",
            way_out=spelling.suggest_word(name, _list_schema_names()) or "noetl schema lists them",
            exit_code=ExitCode.USAGE,
        ) from error


def _write_schemas(folder: Path, names: list[str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            (folder / f"{name}.json").write_text(
                _build_schema_text(_get_schema(name)) + "\n", encoding="utf-8"
            )
    except OSError as error:
        raise CliError(
            f"{folder} cannot be written: {error.strerror}.",
            way_out="Choose another folder with --out.",
            exit_code=ExitCode.USAGE,
        ) from error
    terminal_output.print_note(f"{len(names)} schemas in {folder}")


def _build_schema_text(value: dict[str, Any]) -> str:
    return msgspec.json.format(codec.encode_text(value), indent=2)
