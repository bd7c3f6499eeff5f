"""Files that a run takes with it, in this process and on a planner."""

from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from tests.support.asking import http
from tests.support.running_api import Noetl, RunningApi

from noetl_contracts.execution_files import CHUNK_HEAD, digest_chunk

PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: people, path: demo/people}
workflow:
  - step: count
    tool:
      kind: duckdb
      query: "SELECT count(*) AS n, sum(age) AS total FROM read_csv('data/people.csv')"
    next: names
  - step: names
    tool:
      kind: python
      input: {count: "{{ count.rows[0] }}"}
      code: |
        with open("data/people.csv") as lines:
            names = [line.split(",")[0] for line in lines][1:]
        return {"names": names, "count": count, "size": len(open("large.bin", "rb").read())}
"""
# More chunks than an entry of the journal holds.
LARGE_BYTES = 70 * 256 * 1024 + 5


@pytest.fixture
def people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/people.csv").write_text("name,age\nada,36\ngrace,45\n")
    with (tmp_path / "large.bin").open("wb") as file:
        file.truncate(LARGE_BYTES)
    playbook = tmp_path / "people.yaml"
    playbook.write_text(PLAYBOOK)
    return playbook


def test_a_local_run_finds_the_files_that_it_takes_along(noetl: Noetl, people: Path) -> None:
    given = ("--file", "data/people.csv", "--file", f"large.bin={people.parent / 'large.bin'}")
    outcome = noetl("run", str(people), "-r", "local", *given, "--output", "json")
    assert outcome.code == 0, outcome
    found = msgspec.json.decode(outcome.out)
    assert found["names"] == ["ada", "grace"]
    assert found["size"] == LARGE_BYTES
    assert (found["count"]["n"], int(found["count"]["total"])) == (2, 81)


def test_a_file_that_is_not_taken_along_is_told_with_the_way_out(
    noetl: Noetl, people: Path
) -> None:
    outcome = noetl("run", str(people), "-r", "local", "--file", "large.bin")
    assert outcome.code == 1
    assert "files of their execution, which has large.bin: take this one along" in outcome.err
    assert "`noetl run FILE --file data/people.csv`" in outcome.err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("none.csv",), "'none.csv' is not there"),
        (("data",), "'data' is a folder"),
        (("../x=data/people.csv",), "climbs out of its folder"),
        (("/x=data/people.csv",), "is no relative name"),
        ((".noetl/x=data/people.csv",), "the engine's own"),
        (("a=data/people.csv", "a=large.bin"), "Two files are named 'a'"),
    ],
)
def test_a_file_that_cannot_be_taken_along_is_refused_before_the_run(
    noetl: Noetl, people: Path, given: tuple[str, ...], said: str
) -> None:
    words = [word for name in given for word in ("--file", name)]
    outcome = noetl("run", str(people), "-r", "local", *words)
    assert (outcome.code, outcome.out) == (2, "")
    assert said in outcome.err


def ask(running_api: RunningApi, body: dict[str, Any], key: str | None = None) -> httpx.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    asked = {"content": PLAYBOOK, **body}
    return http.post(f"{running_api.url}/api/execute", json=asked, headers=headers)


def test_a_planner_keeps_the_files_before_the_run_begins(
    noetl: Noetl, people: Path, running_api: RunningApi
) -> None:
    data = b"name,age\nada,36\n"
    stored = http.post(f"{running_api.url}/api/files/chunks", content=data).json()
    assert stored == {"digest": digest_chunk(data)}
    assert not data.startswith(CHUNK_HEAD)
    file = {
        "path": "a.csv",
        "size_bytes": len(data),
        "chunk_bytes": 256,
        "chunks": [stored["digest"]],
    }
    assert ask(running_api, {"files": [file]}, "one").status_code == 202
    assert ask(running_api, {"files": [file]}, "one").json()["deduplicated"]
    # The same key with other files is another request.
    assert ask(running_api, {"files": [{**file, "path": "b.csv"}]}, "one").status_code == 409
    outcome = noetl("run", str(people), "--file", "data/people.csv", "--detach")
    assert outcome.code == 0, outcome


@pytest.mark.parametrize(
    "change",
    [
        {"path": "../a"},
        {"path": "/a"},
        {"path": "a//b"},
        {"path": ".noetl/a"},
        {"size_bytes": 1000},
        {"chunks": []},
        {"chunks": ["x"]},
        {"path": "a/b"},
    ],
)
def test_files_that_make_no_sense_are_refused(
    running_api: RunningApi, change: dict[str, Any]
) -> None:
    file = {"path": "a", "size_bytes": 9, "chunk_bytes": 256, "chunks": ["0" * 64]}
    others = [file] if change == {"path": "a/b"} else []
    assert ask(running_api, {"files": [*others, {**file, **change}]}).status_code == 400


def test_a_file_that_is_not_stored_is_refused_by_its_name(running_api: RunningApi) -> None:
    file = {"path": "a.csv", "size_bytes": 9, "chunk_bytes": 256, "chunks": ["0" * 64]}
    answer = ask(running_api, {"files": [file]})
    assert (answer.status_code, answer.json()["code"]) == (422, "file_not_stored")
    assert "a.csv" in answer.json()["detail"]
