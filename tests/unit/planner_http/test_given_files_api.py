"""Files that a run takes with it are stored before the run is asked for."""

from typing import Any

import pytest
from litestar import Litestar
from litestar.testing import AsyncTestClient

from noetl_contracts.execution_files import digest_chunk

Api = AsyncTestClient[Litestar]
PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: files, path: demo/files}
workflow:
  - step: start
    tool: {kind: noop}
"""


@pytest.fixture(autouse=True)
async def registered(api: Api) -> None:
    answer = await api.post("/api/catalog/register", json={"content": PLAYBOOK})
    assert answer.status_code in {200, 201}, answer.text


async def ask(api: Api, *files: dict[str, Any]) -> Any:
    return await api.post("/api/execute", json={"path": "demo/files", "files": list(files)})


def file_of(path: str, *chunks: bytes) -> dict[str, Any]:
    """A file in chunks that are all as long as the first."""
    return {
        "path": path,
        "size_bytes": sum(map(len, chunks)),
        "chunk_bytes": len(chunks[0]),
        "chunks": [digest_chunk(chunk) for chunk in chunks],
    }


async def test_a_file_whose_chunks_are_stored_is_taken(api: Api) -> None:
    for chunk in (b"one", b"two"):
        stored = await api.post("/api/files/chunks", content=chunk)
        assert stored.json()["digest"] == digest_chunk(chunk)
    both = file_of("a.txt", b"one", b"two"), file_of("b.txt", b"two")
    assert (await ask(api, *both)).status_code == 202


async def test_a_file_with_a_chunk_that_is_not_stored_is_refused_by_its_name(api: Api) -> None:
    await api.post("/api/files/chunks", content=b"one")
    answer = await ask(api, file_of("a.txt", b"one"), file_of("data/b.txt", b"one", b"two"))
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (422, "file_not_stored")
    assert "data/b.txt" in problem["detail"]
    assert "/api/files/chunks" in problem["hint"]
    assert (await api.get("/api/executions")).json()["executions"] == []
    # It is taken once the chunk is there.
    await api.post("/api/files/chunks", content=b"two")
    assert (await ask(api, file_of("data/b.txt", b"one", b"two"))).status_code == 202


async def test_a_payload_that_is_no_chunk_of_a_file_is_refused(api: Api) -> None:
    file = {**file_of("a.txt", b"one"), "chunks": ["0" * 64]}
    assert (await ask(api, file)).json()["code"] == "file_not_stored"
