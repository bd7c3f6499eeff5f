"""`python -m noetl_storage migrate | verify`, with the owner's DSN in the environment."""

import asyncio
import os
import sys

from noetl_contracts.errors import NoetlError
from noetl_storage.postgres import migrate
from noetl_storage.postgres.database import open_database

_DSN = "NOETL_STORAGE_POSTGRES_DSN"
_DEADLINE = "NOETL_STORAGE_CONNECT_DEADLINE_S"
_USAGE = f"usage: {_DSN}=postgresql://… python -m noetl_storage migrate | verify"
_USAGE_EXIT = 2


def main(arguments: list[str], *, dsn: str | None, deadline_s: float) -> int:
    """Run one command; return the exit code."""
    if arguments not in (["migrate"], ["verify"]) or not dsn:
        sys.stderr.write(f"{_USAGE}\n")
        return _USAGE_EXIT
    try:
        sys.stdout.write(f"{asyncio.run(_run_command(arguments[0], dsn, deadline_s))}\n")
    except NoetlError as failure:
        sys.stderr.write(f"{failure}\n")
        return 1
    return 0


async def _run_command(command: str, dsn: str, deadline_s: float) -> str:
    async with open_database(
        dsn,
        application_name="noetl_storage",
        connections_max=2,
        connect_deadline_s=deadline_s,
        must_be_durable=False,
    ) as database:
        migrations = await migrate.apply_migrations(database) if command == "migrate" else []
        version = await migrate.verify_schema(database)
    return f"schema {version:04d}" + (
        f", took {', '.join(migrations)}" if migrations else ", nothing to do"
    )


if __name__ == "__main__":
    sys.exit(
        main(
            sys.argv[1:],
            dsn=os.environ.get(_DSN),  # noqa: TID251 - this is the command's settings
            deadline_s=float(os.environ.get(_DEADLINE, "60")),  # noqa: TID251 - likewise
        )
    )
