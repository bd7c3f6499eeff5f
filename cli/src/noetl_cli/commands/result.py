"""`noetl result`: what a step gave, on screen or in a file."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct

from noetl_cli import client, render, step_result
from noetl_cli.commands.options import ExecutionArgument, Server
from noetl_cli.failures import CliError, ExitCode
from noetl_cli.local import history
from noetl_cli.spinner import show_spinner
from noetl_cli.step_result import PlannerResults, ResultSource
from noetl_storage.deferred import Deferred

if TYPE_CHECKING:
    from noetl_cli import result_file, result_text
else:
    result_file = Deferred("noetl_cli.result_file")
    result_text = Deferred("noetl_cli.result_text")


class Form(StrEnum):
    """How a result is printed."""

    TABLE = "table"
    JSON = "json"
    NONE = "none"


Output = Annotated[
    Form | None,
    typer.Option("--output", help="Print rows as a table and fields as a tree, JSON, or none."),
]
Save = Annotated[
    Path | None,
    typer.Option("--save", metavar="FILE", help="Write it whole: .json, .csv or .parquet."),
]


class ResultOutput(Struct, frozen=True, kw_only=True):
    """Where the result of an execution goes that is watched to its end."""

    form: Form = Form.TABLE
    file: Path | None = None

    @property
    def is_required(self) -> bool:
        """Whether a program or a file waits for it."""
        return self.file is not None or self.form is Form.JSON


def choose_output(
    form: Form | None, file: Path | None, *, follow: bool = True, as_json: bool
) -> ResultOutput:
    """Choose what is done with the result; raises `CliError` for what excludes each other."""
    if file is not None:
        result_file.check_file(file)
    if as_json and form not in {None, Form.NONE}:
        raise CliError(
            f"--json prints events, and --output {form} a result.",
            way_out="Give one of the two.",
            exit_code=ExitCode.USAGE,
        )
    if not follow and (file is not None or form is Form.JSON):
        raise CliError(
            "--detach leaves before there is a result.",
            way_out="Leave --detach out, or call noetl result ID later.",
            exit_code=ExitCode.USAGE,
        )
    return ResultOutput(form=form or (Form.NONE if as_json else Form.TABLE), file=file)


def result(
    execution_id: ExecutionArgument,
    step: Annotated[
        str | None,
        typer.Argument(metavar="[STEP]", help="The step (default: the last one with a result)."),
    ] = None,
    *,
    output: Output = None,
    save: Save = None,
    server: Server = None,
) -> None:
    """Show the result of a step, or write it into a file.

    A table shows the first rows and columns, and says what it cut; JSON and files hold all.
    """
    if save is not None:
        result_file.check_file(save)
    history.check_remote(execution_id, server=server)
    with client.open_client(server) as planner:
        source = PlannerResults(planner, execution_id)
        named = step_result.choose_step(source, execution_id, step)
        whole = f"noetl result {execution_id} {named!r} --output json"
        show_result(source, named, output=output or Form.TABLE, save=save, whole=whole)


def show_result(
    source: ResultSource, step: str, *, output: Form, save: Path | None, whole: str
) -> None:
    """Print a step's result and write it as asked; raises `CliError`.

    `whole` is the command that prints what a table cuts.
    """
    match output:
        case Form.TABLE:
            with show_spinner("Reading the result"):
                head = step_result.read_head(source, step, rows_max=result_text.ROWS_SHOWN_MAX)
            result_text.print_result(head, whole=whole)
        case Form.JSON:
            render.json_line(step_result.read_whole(source, step).data)
        case Form.NONE:
            pass
    # What cannot be saved has been shown.
    if save is not None:
        as_json = source.save_command(step, save.with_suffix(".json"))
        with show_spinner("Saving the result", is_quiet=output is Form.JSON):
            whole_result = step_result.read_whole(source, step)
            result_file.save_result(save, whole_result, as_json=as_json)
        render.note(f"The result of step {step!r} is in {save}")


def show_last_result(
    source: ResultSource, execution_id: str, wanted: ResultOutput, *, whole: str
) -> None:
    """Show the result that an execution ended with; says so when it has none or cannot be read.

    Raises `CliError` only where a file or a program waits for it.
    """
    if wanted.form is Form.NONE and wanted.file is None:
        return
    try:
        _show_last(source, execution_id, wanted, whole=whole)
    except CliError as error:
        if wanted.is_required:
            raise
        render.note(f"The result is not shown: {error.message}")


def _show_last(
    source: ResultSource, execution_id: str, wanted: ResultOutput, *, whole: str
) -> None:
    step = source.list_results()["last_step"]
    if step is not None:
        show_result(source, step, output=wanted.form, save=wanted.file, whole=whole)
    elif wanted.is_required:
        raise CliError(f"No step of execution {execution_id} has a result.")
