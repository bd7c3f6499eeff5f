"""The command line: the one place that turns failures into exit codes."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer
from typer._completion_classes import completion_init

from noetl_cli import plain_values, settings, terminal_output, verbs
from noetl_cli.errors import CliError, ExitCode
from noetl_cli.verbs import VerbGroup
from noetl_storage.process.lazy_import import LazyModule

if TYPE_CHECKING:
    from importlib import metadata
else:
    # It is wanted for one option, and loads what reads mail.
    metadata = LazyModule("importlib.metadata")

app = typer.Typer(
    name="noetl",
    cls=VerbGroup,
    help="Run data playbooks that survive the death of any process.",
    epilog="noetl VERB -h explains a verb.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def print_version(is_asked: bool) -> None:  # noqa: FBT001 - as the library calls it
    """Print the version and end."""
    if is_asked:
        terminal_output.print_line(f"noetl {metadata.version('noetl')}")
        raise typer.Exit


@app.callback()
def noetl(
    *,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=print_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Stand above the verbs."""


def main() -> None:
    """Run one verb and end with its exit code."""
    plain_values.use_plain_values()
    try:
        verbs.check_arguments_text(sys.argv[1:])
        if settings.is_completing(environ=settings.copy_environment()):
            completion_init()
        app(prog_name="noetl")
    except CliError as error:
        terminal_output.print_error(error, as_json="--json" in sys.argv[1:])
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(ExitCode.CANCELLED)
    except BrokenPipeError:
        # The reader of our pipe has seen enough.
        sys.stderr.close()
        sys.exit(ExitCode.OK)


if __name__ == "__main__":
    main()
