"""The files of simulated executions: none, since the tools that the world plays use none."""

from collections.abc import Awaitable, Callable

from noetl_contracts.commands.command_work import Command
from noetl_worker.tools.calls.call import Call, Outcome


class NoFiles:
    """Runs each attempt as it is."""

    async def run_with_files(
        self, call: Call, run: Callable[[Call], Awaitable[Outcome]]
    ) -> Outcome:
        """Run one attempt."""
        return await run(call)

    def count_entries(self, command: Command) -> int:
        """Return that no file was ever changed."""
        return 0

    async def read_entries(self, command: Command) -> None:
        """Find nothing."""
