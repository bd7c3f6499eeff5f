"""Plans of Spark as they are kept with a result: without secrets, and of a bounded length."""

from msgspec import structs

from noetl_worker.domain.secret_mask import SecretMask
from noetl_worker.spark.task_request import SparkResult

PLAN_CHARACTERS_MAX = 64 * 1024


def mask_plans(result: SparkResult, mask: SecretMask) -> SparkResult:
    """Return a result whose plans, those of its tables by name too, may be kept."""
    return structs.replace(
        result,
        physical_plan=_shorten_plan(mask.mask_text(result.physical_plan)),
        named={name: mask_plans(table, mask) for name, table in result.named.items()},
    )


def _shorten_plan(text: str) -> str:
    """Cut a text without secrets: half of one would be masked by nobody."""
    if len(text) <= PLAN_CHARACTERS_MAX:
        return text
    return f"{text[:PLAN_CHARACTERS_MAX]}\n... {len(text) - PLAN_CHARACTERS_MAX} characters more"
