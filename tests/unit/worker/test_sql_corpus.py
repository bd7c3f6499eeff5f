"""Scripts of each dialect are cut into the statements that they hold, or refused by line."""

import subprocess
import sys
from typing import Any

import pytest
from tests.support.sql_corpus import read_scripts

from noetl_worker.domain.failures import ToolFailure
from noetl_worker.sql import lexer
from noetl_worker.sql.sql_statements import cut_statements


def _texts(dialect: str, script: dict[str, Any]) -> list[str]:
    if dialect == "spark":
        return list(lexer.cut_spark_statements(script["sql"]))
    assert dialect in {"postgres", "duckdb"}
    statements = cut_statements(script["sql"], script.get("style", ""), dialect)  # type: ignore[arg-type]  # it was checked
    return [statement.text for statement in statements]


@pytest.mark.parametrize(("dialect", "script"), read_scripts("postgres", "duckdb", "spark"))
def test_a_script_is_cut_into_its_statements(dialect: str, script: dict[str, Any]) -> None:
    if "refused" not in script:
        assert _texts(dialect, script) == script["statements"]
        return
    with pytest.raises(ToolFailure) as refused:
        _texts(dialect, script)
    assert refused.value.error.kind == "validation"
    assert script["refused"] in refused.value.error.message


def test_there_are_enough_scripts_of_each_dialect() -> None:
    counts = {name: len(read_scripts(name)) for name in ("postgres", "duckdb", "spark")}
    assert all(count >= 20 for count in counts.values())
    assert sum(counts.values()) >= 60


_LAZY = """
import sys
from noetl_worker.sql import lexer
from noetl_worker.sql.sql_statements import cut_statements
assert len(cut_statements("select 1 from t", "")) == 1
assert "sqlglot" not in sys.modules
assert len(cut_statements("select 1; select 2", "")) == 2
assert "sqlglot" in sys.modules
"""


def test_the_parser_is_loaded_by_the_first_text_that_needs_it() -> None:
    subprocess.run([sys.executable, "-c", _LAZY], check=True)  # noqa: S603 - our own text
