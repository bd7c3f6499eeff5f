"""Statements are found by their names, of which each stands for one."""

import sys
from pathlib import Path

import pytest

from noetl_storage.process.sql_statements import load_statements


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "shop_sql"
    (folder / "sql").mkdir(parents=True)
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "shop_sql", raising=False)
    return folder


def test_each_statement_is_found_by_its_name(package: Path) -> None:
    text = "-- name: find_order :one\nselect 1;\n\n-- name: list_orders :many\nselect 2\n  -- all\n"
    (package / "sql" / "orders.sql").write_text(text)
    assert load_statements("shop_sql", "orders") == {
        "find_order": "select 1;",
        "list_orders": "select 2\n  -- all",
    }


def test_a_name_that_stands_twice_is_refused(package: Path) -> None:
    statement = "-- name: find_order :one\nselect 1\n"
    (package / "sql" / "orders.sql").write_text(statement * 2)
    with pytest.raises(ValueError, match=r"orders\.sql names a statement twice"):
        load_statements("shop_sql", "orders")
