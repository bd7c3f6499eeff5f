"""Every proof that there is, by name, in the order of the page."""

from types import ModuleType

from tests.proof import (
    analytics,
    full,
    leases,
    lineage,
    memory,
    million,
    nearness,
    pipeline,
    slider,
    tables,
    tpch,
)

PROOFS: dict[str, ModuleType] = {
    "full": full,
    "analytics": analytics,
    "million": million,
    "leases": leases,
    "tables": tables,
    "tpch": tpch,
    "pipeline": pipeline,
    "memory": memory,
    "nearness": nearness,
    "slider": slider,
    "lineage": lineage,
}
# Takes the folder of files that OpenLineage publishes.
NEEDS_SPEC = "lineage"
