"""The samples of pages in JSON, Python and SQL can be read."""

import ast
import json
from pathlib import Path

import pytest
import sqlglot
from tests.support.page_fences import list_fences, list_pages

PAGES = [page for page in list_pages() if list_fences(page, "json", "python", "sql")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_samples_of_a_page_can_be_read(page: Path) -> None:
    for fence in list_fences(page, "json"):
        assert json.loads(fence.text), fence.name
    for fence in list_fences(page, "python"):
        assert ast.parse(fence.text, fence.name).body, fence.name
    for fence in list_fences(page, "sql"):
        dialect = "duckdb" if "LAKE" in fence.text else "postgres"
        assert all(sqlglot.parse(fence.text, dialect=dialect)), fence.name
