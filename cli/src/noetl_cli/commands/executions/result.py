"""`noetl result`: what a step gave, on screen or in a file."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct

from noetl_cli import terminal_output
from noetl_cli.commands.options import ExecutionArgument, LastStepArgument, Server
from noetl_cli.errors import CliError, ExitCode
from noetl_cli.local import history
from noetl_cli.planner import client, step_result
from noetl_cli.planner.step_result import PlannerResults, ResultSource
from noetl_cli.terminal_output import show_spinner
from noetl_storage.process.lazy_import import LazyModule

if TYPE_CHECKING:
    from noetl_cli.files import result_file
    from noetl_cli.terminal import result_text
else:
    result_file = LazyModule("noetl_cli.files.result_file")
    result_text = LazyModule("noetl_cli.terminal.result_text")


class ResultForm(StrEnum):
    """How a result is printed."""

    TABLE = "table"
    JSON = "json"
    NONE = "none"


Output = Annotated[
    ResultForm | None,
    typer.Option("--output", help="Print rows as a table and fields as a tree, JSON, or none."),
]
Save = Annotated[
    Path | None,
    typer.Option("--save", metavar="FILE", help="Write it whole: .json, .csv or .parquet."),
]


class ResultOutput(Struct, frozen=True, kw_only=True):
    """Where the result of an execution goes that is watched to its end."""

    form: ResultForm = ResultForm.TABLE
    file: Path | None = None

    @property
    def is_required(self) -> bool:
        """Whether a program or a file waits for it."""
        return self.file is not None or self.form is ResultForm.JSON


def choose_output(
    form: ResultForm | None, file: Path | None, *, follow: bool = True, as_json: bool
) -> ResultOutput:
    """Choose what is done with the result; raises `CliError` for what excludes each other."""
    if file is not None:
        result_file.check_result_file(file)
    if as_json and form not in {None, ResultForm.NONE}:
        raise CliError(
            f"--json prints events, and --output {form} a result.",
            way_out="Give one of the two.",
            exit_code=ExitCode.USAGE,
        )
    if not follow and (file is not None or form is ResultForm.JSON):
        raise CliError(
            "--detach leaves before there is a result.",
            way_out="Leave --detach out, or call noetl result ID later.",
            exit_code=ExitCode.USAGE,
        )
    return ResultOutput(form=form or (ResultForm.NONE if as_json else ResultForm.TABLE), file=file)


def result(
    execution_id: ExecutionArgument,
    step: LastStepArgument = None,
    *,
    output: Output = None,
    save: Save = None,
    server: Server = None,
) -> None:
    """Show the result of a step, or write it into a file.

    A table shows the first rows and columns, and says what it cut; JSON and files hold all.
    """
    if save is not None:
        result_file.check_result_file(save)
    history.check_is_remote(execution_id, server=server)
    with client.open_client(server) as planner:
        source = PlannerResults(planner, execution_id)
        named = step_result.choose_step(source, execution_id, step)
        whole = f"noetl result {execution_id} {named!r} --output json"
        form = output or ResultForm.TABLE
        show_result(source, named, output=form, save=save, whole=whole, has_place=True)


def show_result(
    source: ResultSource,
    step: str,
    *,
    output: ResultForm,
    save: Path | None,
    whole: str,
    has_place: bool = False,
) -> None:
    """Print a step's result and write it as asked; raises `CliError`.

    `whole` is the command that prints what a table cuts. With `has_place` a table is followed by
    where the result lies, and its schema.
    """
    match output:
        case ResultForm.TABLE:
            with show_spinner("Reading the result"):
                head = step_result.read_first_rows(
                    source, step, rows_max=result_text.ROWS_SHOWN_MAX
                )
            result_text.print_result(head, whole=whole)
            if has_place and head.tier is not None:
                terminal_output.print_note(result_text.format_place(head))
        case ResultForm.JSON:
            terminal_output.print_json(step_result.read_whole_result(source, step).data)
        case ResultForm.NONE:
            pass
    # What cannot be saved has been shown.
    if save is not None:
        as_json = source.build_save_command(step, save.with_suffix(".json"))
        with show_spinner("Saving the result", is_quiet=output is ResultForm.JSON):
            whole_result = step_result.read_whole_result(source, step)
            result_file.save_result(save, whole_result, as_json=as_json)
        terminal_output.print_note(f"The result of step {step!r} is in {save}")


def show_last_result(
    source: ResultSource, execution_id: str, result_output: ResultOutput, *, whole: str
) -> None:
    """Show the result that an execution ended with; says so when it has none or cannot be read.

    Raises `CliError` only where a file or a program waits for it.
    """
    if result_output.form is ResultForm.NONE and result_output.file is None:
        return
    try:
        _print_last_result(source, execution_id, result_output, whole=whole)
    except CliError as error:
        if result_output.is_required:
            raise
        terminal_output.print_note(f"The result is not shown: {error.message}")


def _print_last_result(
    source: ResultSource, execution_id: str, result_output: ResultOutput, *, whole: str
) -> None:
    step = source.list_results()["last_step"]
    if step is not None:
        show_result(source, step, output=result_output.form, save=result_output.file, whole=whole)
    elif result_output.is_required:
        raise CliError(f"No step of execution {execution_id} has a result.")
