"""Options that several verbs share."""

from typing import Annotated

import typer

Server = Annotated[
    str | None,
    typer.Option("--server", help="The planner's address (default: NOETL_SERVER, else `up`'s)."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
ExecutionArgument = Annotated[str, typer.Argument(metavar="ID", help="The execution.")]
