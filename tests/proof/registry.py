"""Every proof that there is, by name, in the order of the page."""

from types import ModuleType

from tests.proof import analytics, million, nearness, tables

PROOFS: dict[str, ModuleType] = {
    "analytics": analytics,
    "million": million,
    "tables": tables,
    "nearness": nearness,
}
