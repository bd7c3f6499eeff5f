"""What ends the work on a dataset: the kind of error, and a text that names the place."""


class DatasetProblem(Exception):  # noqa: N818 - it carries an outcome, it is not one of the errors
    """Ends the work on a dataset; `kind` is a kind of task errors."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message

    def __reduce__(self) -> tuple[type["DatasetProblem"], tuple[str, str]]:
        """Travel between the processes of Spark."""
        return type(self), (self.kind, self.message)
