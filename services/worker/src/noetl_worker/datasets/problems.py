"""What ends the work on a dataset: the kind of error, and a text that names the place."""

from collections.abc import Sequence

from noetl_contracts.commands.data_checks import CheckReport


class DatasetProblem(Exception):  # noqa: N818 - it carries an outcome, it is not one of the errors
    """Ends the work on a dataset; `kind` is a kind of task errors.

    `checks` are what the checks of its rows have found, where one of them is what ends it.
    """

    def __init__(self, kind: str, message: str, checks: Sequence[CheckReport] = ()) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.checks = checks

    def __reduce__(self) -> tuple[type["DatasetProblem"], tuple[str, str, Sequence[CheckReport]]]:
        """Travel between the processes of Spark."""
        return type(self), (self.kind, self.message, self.checks)
