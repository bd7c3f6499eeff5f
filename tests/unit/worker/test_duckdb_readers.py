"""A query that is read no further keeps nobody from the file."""

import subprocess
import sys
from pathlib import Path

# In a process of its own: who waits for the file inside of DuckDB can be ended in no other way.
CODE = """
import sys
from pathlib import Path
from noetl_worker.tools.duckdb.duckdb_session import DatabasePlaces, DuckdbLimits, DuckdbSession

def opened():
    session = DuckdbSession(limits=DuckdbLimits())
    session.open_database(DatabasePlaces(database=Path(sys.argv[1])), {})
    return session

first = opened()
first.fetch_rows("create table t as select * from range(100000)", [])
begun = first.scan_query("select * from t", [], size=100)
next(begun.batches)
rows = first.read_windows("select * from t", [], size=100)[2]
next(rows)
first.close()
print(opened().fetch_rows("select count(*) from t", []))
"""


def test_a_file_is_opened_again_though_queries_of_it_were_left(tmp_path: Path) -> None:
    output = subprocess.run(  # noqa: S603 - our own code
        [sys.executable, "-c", CODE, str(tmp_path / "one.duckdb")],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (output.stdout, output.stderr) == ("[(100000,)]\n", "")
