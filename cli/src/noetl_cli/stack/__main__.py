"""The supervisor's process: `python -m noetl_cli.stack FOLDER`."""

import asyncio
import logging
import sys
from pathlib import Path

from noetl_cli import settings, terminal_output
from noetl_cli.errors import CliError, ExitCode, StackError
from noetl_cli.stack.home_folder import home, options
from noetl_cli.stack.supervision.supervisor import run_supervisor

LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"


def main() -> None:
    """Be the only supervisor of a folder until told to stop."""
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT, stream=sys.stderr)
    failure: CliError | None
    try:
        failure = _run_supervisor(home.make_home(Path(sys.argv[1])))
    except CliError as error:
        failure = error
    if failure is not None:
        terminal_output.print_error(failure)
        sys.exit(ExitCode.FAILED)


def _run_supervisor(place: home.StackHome) -> StackError | None:
    with home.hold_supervisor_lock(place):
        return asyncio.run(
            run_supervisor(
                home=place, options=options.read_options(place), environ=settings.copy_environment()
            )
        )


if __name__ == "__main__":
    main()
