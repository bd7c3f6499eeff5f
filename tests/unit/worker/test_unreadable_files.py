"""Bad files on a disk, read without Spark: typed errors that name file and place, or the rows."""

from pathlib import Path

import pytest
from tests.support.bad_files import CASES, Case
from tests.support.bad_rows import BAD_ROWS

from noetl_playbook.model import datasets
from noetl_worker.datasets import read_plan
from noetl_worker.datasets.address import DatasetAddress, OpenStore
from noetl_worker.datasets.csv_rows import Rejects
from noetl_worker.datasets.file_rows import FileReader
from noetl_worker.datasets.problems import DatasetProblem

# The others are about a bucket, a credential, or what Spark makes of a value.
READ = [
    case
    for case in (*CASES, *BAD_ROWS)
    if case.kind not in ("auth", "config", "db_error")
    and not case.source.get("path", "").startswith("s3://")
    and "moment after" not in case.name
    and "nanoseconds" not in case.name
]


def count_rows(folder: Path, case: Case) -> tuple[int, int]:
    """Read all files of a case; return how many rows there are, and how many did not fit."""
    path = case.source.get("path", "FOLDER").replace("FOLDER", f"{folder}/")
    source = datasets.parse_source({**case.source, "path": path.lstrip("/")})
    address = DatasetAddress(scheme="file", path=path)
    plan = read_plan.build_read_plan(address, source, None)
    reader = FileReader(OpenStore(address, None), source, plan.format)
    schema, rejects = read_plan.decode_schema(plan.schema), Rejects()
    batches = [
        batch for piece in plan.pieces for batch in reader.iterate_batches(piece, schema, rejects)
    ]
    return sum(batch.num_rows for batch in batches), rejects.count


@pytest.mark.parametrize("case", READ, ids=lambda case: case.name)
def test_bad_files_are_read_whole_or_refused_by_name(tmp_path: Path, case: Case) -> None:
    for name, data in case.files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data if isinstance(data, bytes) else data())
    if case.rows is not None:
        rows, rejected = count_rows(tmp_path, case)
        assert rejected == case.rejected
        # Other queries count or add.
        if case.sql.removesuffix(" ORDER BY id") == "SELECT * FROM t":
            assert rows == len(case.rows)
        return
    with pytest.raises(DatasetProblem) as caught:
        count_rows(tmp_path, case)
    said = [part.replace("FOLDER", f"{tmp_path}/") for part in case.said]
    assert caught.value.kind == case.kind, caught.value.message
    assert [part for part in said if part not in caught.value.message] == [], caught.value.message
