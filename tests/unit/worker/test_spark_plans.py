"""Plans of Spark hold no secrets, whole or cut."""

from noetl_worker.domain.secret_mask import SecretMask
from noetl_worker.spark.task_request import SparkResult
from noetl_worker.tools.spark import plan_texts

SECRET = "correct-horse-battery-staple"  # noqa: S105 - a sample


def test_a_secret_across_the_cut_of_a_plan_leaves_nothing_readable() -> None:
    half = len(SECRET) // 2
    plan = "x" * (plan_texts.PLAN_CHARACTERS_MAX - half) + SECRET + "y" * 1000
    table = SparkResult(physical_plan=plan)
    kept = plan_texts.mask_plans(
        SparkResult(physical_plan=plan, named={"t": table}), SecretMask([SECRET])
    )
    for text in (kept.physical_plan, kept.named["t"].physical_plan):
        assert SECRET[:half] not in text
        assert text.endswith("characters more")
        assert len(text) < plan_texts.PLAN_CHARACTERS_MAX + 100


def test_a_plan_that_is_short_is_kept_whole() -> None:
    kept = plan_texts.mask_plans(SparkResult(physical_plan=f"scan {SECRET}"), SecretMask([SECRET]))
    assert kept.physical_plan.startswith("scan ")
    assert SECRET not in kept.physical_plan
    assert not kept.physical_plan.endswith("more")
