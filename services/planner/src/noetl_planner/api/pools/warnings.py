"""Warnings at registration: steps whose pool is missing or cannot run them."""

from collections.abc import Mapping
from typing import Any

from noetl_contracts.commands.worker_pools import Pools
from noetl_planner.domain.steps import pools as wanted
from noetl_playbook.source.problems import Level, Problem, Severity


def list_pool_warnings(model: Mapping[str, Any], pools: Pools, *, line: int) -> list[Problem]:
    """Warn of steps whose pool is not here or cannot run them; a request may name another pool.

    They are warnings: pools may be made after playbooks. `line` is where the playbook begins.
    """
    problems = []
    for index, wish in enumerate(wanted.list_pool_demands(model, None)):
        refusal = wanted.find_pool_error([wish], pools)
        if refusal is not None:
            problems.append(
                Problem(
                    code=wanted.KIND,
                    severity=Severity.WARNING,
                    level=Level.TOLERANT,
                    path=f"workflow[{index}]",
                    line=line,
                    column=1,
                    message=refusal.message,
                    step=wish.step,
                )
            )
    return problems
