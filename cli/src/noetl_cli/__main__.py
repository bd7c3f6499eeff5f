"""The command line: every verb, and the one place that turns failures into exit codes."""

import sys

import typer

from noetl_cli import render
from noetl_cli.commands import doctor, down, logs, up
from noetl_cli.failures import CliError, ExitCode

app = typer.Typer(
    name="noetl",
    help="Run data playbooks that survive the death of any process.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

# The stack.
app.command("up")(up.up)
app.command("down")(down.down)
app.command("doctor")(doctor.doctor)
app.command("logs")(logs.logs)

# Playbooks and executions.


def main() -> None:
    """Run one verb and end with its exit code."""
    try:
        app()
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
