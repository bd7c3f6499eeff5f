"""Names that stay the same however often the same logical work is tried."""

from noetl_contracts import codec


def idempotency_key(
    *,
    execution_id: str,
    step: str,
    activation: int,
    unit: str,
    row_index: int | None,
    task: str,
    visit: int,
) -> str:
    """Name one logical request: the same in every try and replay.

    It is another for another page, and for another run of the step.
    """
    row = "" if row_index is None else row_index
    seed = f"{execution_id}\n{step}\n{activation}\n{unit}\n{row}\n{task}\n{visit}"
    return codec.digest(seed.encode())
