"""Options that several verbs share."""

from pathlib import Path
from typing import Annotated

import typer

Server = Annotated[
    str | None,
    typer.Option("--server", help="The planner's address (default: NOETL_SERVER, else `up`'s)."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
ExecutionArgument = Annotated[str, typer.Argument(metavar="ID", help="The execution.")]
Tenant = Annotated[
    str | None, typer.Option("--tenant", help="Whose (default: NOETL_TENANT, else `default`).")
]
Organization = Annotated[
    str | None,
    typer.Option("--organization", help="Whose (default: NOETL_ORGANIZATION, else `default`)."),
]
Directory = Annotated[
    Path | None, typer.Option("--dir", help="The stack's folder (default: NOETL_HOME).")
]
