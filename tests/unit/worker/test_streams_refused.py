"""Streams that a worker refuses before anything runs."""

from typing import Any, cast

import pytest
from tests.support.attempting import site_of

from noetl_playbook.lint import step_checks
from noetl_worker.pipeline.chunk_emitter import STREAM_KINDS, run_streaming_call
from noetl_worker.tools.calls.call import Call, Timeout


@pytest.mark.parametrize("kind", ["duckdb", "postgres", "spark"])
async def test_rows_do_not_go_into_a_stream_beside_a_dataset(kind: str) -> None:
    call = Call(
        site=site_of(),
        task="t",
        kind=kind,
        attempt=1,
        visit=1,
        fields={"query": "SELECT 1", "sink": {"path": "out/"}},
        input={},
        auth=None,
        timeout=Timeout(total=30),
    )
    nothing = cast("Any", None)
    outcome = await run_streaming_call(call, nothing, nothing)
    assert outcome.error is not None
    assert outcome.error.kind == "validation"
    assert "into a stream or into the dataset of its output" in outcome.error.message


def test_a_worker_streams_what_a_check_of_playbooks_allows() -> None:
    assert set(step_checks.STREAM_KINDS) == STREAM_KINDS
