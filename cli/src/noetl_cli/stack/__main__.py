"""The supervisor's process: `python -m noetl_cli.stack FOLDER`."""

import asyncio
import logging
import sys
from pathlib import Path

from noetl_cli import render, settings
from noetl_cli.failures import CliError, ExitCode, StackError
from noetl_cli.stack import home, options
from noetl_cli.stack.supervisor import supervise

LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"


def main() -> None:
    """Be the only supervisor of a folder until told to stop."""
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT, stream=sys.stderr)
    failure: CliError | None
    try:
        failure = _run(home.make(Path(sys.argv[1])))
    except CliError as error:
        failure = error
    if failure is not None:
        render.failure(failure)
        sys.exit(ExitCode.FAILED)


def _run(place: home.Home) -> StackError | None:
    with home.supervising(place):
        return asyncio.run(
            supervise(home=place, options=options.read(place), environ=settings.environment())
        )


if __name__ == "__main__":
    main()
