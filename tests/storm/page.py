"""The report of a storm, as a page."""

from collections import Counter

from msgspec import Struct, field
from tests.chaos.conftest import LEASE_S


class Report(Struct, kw_only=True):
    """What was done to the stack, what it did meanwhile, and what was found afterwards."""

    seed: int
    minutes: float
    faults: Counter[str] = field(default_factory=Counter)
    small_min: int = 0
    small: list[str] = field(default_factory=list)
    spark: list[str] = field(default_factory=list)
    pft_runs: int = 0
    pft_without_target: int = 0
    healed_s: float = 0.0


def page(report: Report) -> str:
    """Write `benchmarks/chaos.md`."""
    hurt = "\n".join(f"| {what} | {count} |" for what, count in sorted(report.faults.items()))
    asked = f"--minutes {report.minutes:g} --seed {report.seed} --small {report.small_min}"
    return f"""# Work under a storm of faults

Written by `make storm ARGS="{asked}"`: an embedded stack with two workers and leases
of {LEASE_S} s works while a schedule that follows from the seed hurts it. Every fourth part of the
time is free of faults, and the mix changes from part to part. Then it heals, and all is counted.

| fault | times |
|---|---:|
{hurt}

| what ran meanwhile | how it ended |
|---|---|
| {len(report.small):,} executions of a parallel loop and a sum | completed, with the right sum |
| {len(report.spark):,} executions of a fan-out and a reduce on Spark | completed, with the right sum |
| {report.pft_runs} runs of PFT A, 1 x 200, one after another | verified in the disturbed form |
| {report.pft_without_target} more of them | failed with `db_connection`: their target restarted under a step without retries |

Of each, the projection equals the fold of its history. Everything had ended and was checked
{report.healed_s:g} s after the last fault.
"""
