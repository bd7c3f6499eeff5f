"""Statements of scripts are what Spark's own parser reads."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.sql_corpus import read_scripts

from noetl_worker.settings import read_java_environ
from noetl_worker.spark.session import open_spark_session
from noetl_worker.spark.session_options import SessionOptions
from noetl_worker.sql import lexer

pytestmark = pytest.mark.timeout(300)


def _statements() -> list[str]:
    scripts = [item.values[1] for item in read_scripts("spark")]
    return [
        text
        for script in scripts
        if "refused" not in script and script.get("parse", True)
        for text in lexer.cut_spark_statements(script["sql"])
    ]


async def test_spark_parses_each_statement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def adopt(variables: Mapping[str, str]) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    def parse(session: Any) -> list[str]:
        parser = session._jsparkSession.sessionState().sqlParser()
        refused = []
        for text in _statements():
            try:
                parser.parsePlan(text)
            except Exception as problem:  # noqa: BLE001 - each refusal is shown
                refused.append(f"{text}: {problem}")
        return refused

    options = SessionOptions(
        master="local[1]", folder=tmp_path, adopt=adopt, environ=read_java_environ()
    )
    async with open_spark_session(options) as spark_session:
        assert len(_statements()) > 30
        assert await spark_session.run_job(parse, name="parse") == []
