"""The queries of the pages for users and operators are right to a migrated database."""

from pathlib import Path

import pytest
from tests.support.page_samples import Sample, list_blocks
from tests.support.storage import migrated

DOCS = Path(__file__).parents[3] / "docs"
PAGES = (
    "reference/control.md",
    "reference/results.md",
    "reference/events.md",
    "operations/epochs.md",
    "operations/retention.md",
)
QUERIES = [block for page in PAGES for block in list_blocks(DOCS / page, "sql")]


@pytest.mark.parametrize("block", QUERIES, ids=lambda block: f"{block.page.stem}-{block.line}")
async def test_a_query_can_be_asked(block: Sample, database: str) -> None:
    async with migrated(database) as pool, pool.open_transaction() as transaction:
        if block.page.parent.name == "reference":
            await transaction.execute_statement("set local role noetl_reader")
        assert await transaction.fetch_rows(block.text.strip().removesuffix(";")) == []
