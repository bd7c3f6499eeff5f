"""The command line: the one place that turns failures into exit codes."""

import sys

import typer
from typer._completion_classes import completion_init

from noetl_cli import arguments, render, settings
from noetl_cli.failures import CliError, ExitCode
from noetl_cli.verbs import VerbGroup

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


@app.callback()
def noetl() -> None:
    """Stand above the verbs."""


def main() -> None:
    """Run one verb and end with its exit code."""
    try:
        arguments.check_words(sys.argv[1:])
        if settings.is_completing(environ=settings.environment()):
            completion_init()
        app(prog_name="noetl")
    except CliError as error:
        render.failure(error, as_json="--json" in sys.argv[1:])
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(ExitCode.CANCELLED)
    except BrokenPipeError:
        # The reader of our pipe has seen enough.
        sys.stderr.close()
        sys.exit(ExitCode.OK)


if __name__ == "__main__":
    main()
