"""Every proof that there is, by name, in the order of the page."""

from types import ModuleType

from tests.proof import analytics, leases, million, nearness, tables

PROOFS: dict[str, ModuleType] = {
    "analytics": analytics,
    "million": million,
    "leases": leases,
    "tables": tables,
    "nearness": nearness,
}
