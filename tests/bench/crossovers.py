"""The same work by DuckDB, PostgreSQL, Spark and Python tasks, over more and more rows: which is faster from where.

`python -m tests.bench.crossovers` writes benchmarks/crossovers.json, benchmarks/crossovers-*.svg and prints the
table of docs/how-to/choose-an-engine.md. Seconds are those of a task, from its command to the end that the worker
reports; DuckDB, Spark and Python read a Parquet file of the execution, PostgreSQL a table of its own.
"""

import argparse
import asyncio
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
from pygal.style import CleanStyle
from rich.console import Console
from tests.bench.client import HEAD, Client
from tests.bench.drawing import pygal
from tests.proof import running
from tests.support.asking import http
from tests.support.buckets import account_of
from tests.support.servers import S3Server, s3_server
from tests.support.stack import Stack, running_stack

BENCHMARKS = Path("benchmarks")
SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
# Plain Python holds each row as an object: ten million do not fit its process.
PYTHON_ROWS_MAX = 1_000_000
ROUNDS = {10_000: 3, 100_000: 3, 1_000_000: 2, 10_000_000: 1}
GROUPS = 1_000
ENGINES = ("python", "duckdb", "postgres", "spark")
WORKS = {"sum": "sum by key", "join": "join and sum", "sort": "sort and write Parquet"}
SECONDS_SHOWN = (0.01, 0.1, 1, 10, 100)
OPTIONS = ("--workers", "1", "--set", "WORKER_DUCKDB_MEMORY_BYTES=2147483648")
TIMES = """
SELECT node_name AS step,
       extract(epoch FROM max(created_at) FILTER (WHERE event_type = 'call.done')
         - min(created_at) FILTER (WHERE event_type = 'command.issued'))::float8 AS seconds
FROM noetl.event WHERE execution_id = $1 AND node_name LIKE '%\\_%' GROUP BY node_name
"""
ROWS_SQL = (
    "SELECT range AS id, range * 7919 % KEYS AS k, range * 104729 % 1000003 AS v FROM range(ROWS)"
)
KEYS_SQL = "SELECT range AS k, range % 20 AS region FROM range(KEYS)"
FILL_SQL = """
DROP TABLE IF EXISTS t, d;
CREATE TABLE t AS SELECT n AS id, n * 7919 % KEYS AS k, n * 104729 % 1000003 AS v FROM generate_series(0::bigint, ROWS - 1) n;
CREATE TABLE d AS SELECT n AS k, n % 20 AS region FROM generate_series(0::bigint, KEYS - 1) n;
ANALYZE t;
ANALYZE d;
"""
SQL = {
    "sum": "SELECT k % 1000 AS k, CAST(sum(v) AS bigint) AS total FROM t GROUP BY 1",
    "join": "SELECT region AS k, CAST(sum(v) AS bigint) AS total FROM t JOIN d ON d.k = t.k GROUP BY 1",
    "sort": "SELECT * FROM t ORDER BY v, id",
}
PYTHON = {
    "sum": """
import pyarrow.parquet as parquet
totals = {}
for row in parquet.read_table("t.parquet").to_pylist():
    totals[row["k"] % 1000] = totals.get(row["k"] % 1000, 0) + row["v"]
return [{"k": k, "total": total} for k, total in totals.items()]
""",
    "join": """
import pyarrow.parquet as parquet
regions = {row["k"]: row["region"] for row in parquet.read_table("d.parquet").to_pylist()}
totals = {}
for row in parquet.read_table("t.parquet").to_pylist():
    region = regions[row["k"]]
    totals[region] = totals.get(region, 0) + row["v"]
return [{"k": k, "total": total} for k, total in totals.items()]
""",
    "sort": """
import pyarrow as pa
import pyarrow.parquet as parquet
rows = parquet.read_table("t.parquet").to_pylist()
rows.sort(key=lambda row: (row["v"], row["id"]))
parquet.write_table(pa.Table.from_pylist(rows), "sorted.parquet", compression="zstd")
return [{"k": 0, "total": len(rows)}]
""",
}

console = Console()


def main() -> None:
    """Measure every size, and write the report."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    arguments.add_argument("--page", action="store_true", help="only draw and print what was kept")
    given = arguments.parse_args()
    file = BENCHMARKS / "crossovers.json"
    kept = msgspec.json.decode(file.read_bytes())["cases"] if file.exists() else []
    if not given.page:
        with tempfile.TemporaryDirectory(prefix="noetl-crossovers-") as folder:
            for found in measure(Path(folder), given.sizes):
                rows = found[0]["rows"]
                kept = [case for case in kept if case["rows"] != rows] + found
                kept.sort(key=lambda case: (list(WORKS).index(case["work"]), case["rows"]))
                file.write_bytes(msgspec.json.format(msgspec.json.encode({"cases": kept})) + b"\n")
    for work in WORKS:
        (BENCHMARKS / f"crossovers-{work}.svg").write_bytes(draw_plot(kept, work))
    console.print(write_table(kept), soft_wrap=True, markup=False)


def measure(folder: Path, sizes: list[int]) -> Iterator[list[dict[str, Any]]]:
    """Run every work with every engine over tables of each size; yield the cases of a size."""
    with s3_server(folder) as s3, running_stack(folder / "stack", *OPTIONS) as stack:
        running.keep(stack, "crossovers", stack.url("target"))
        body = {"name": "lake", "type": "s3", "data": account_of(s3)}
        http.post(f"{stack.url('api')}/api/credentials", json=body, timeout=10).raise_for_status()
        for row_count in sizes:
            seconds = measure_size(stack, s3, row_count)
            cases = []
            for work in WORKS:
                by_engine = {engine: seconds.get(f"{work}_{engine}") for engine in ENGINES}
                cases.append({"work": work, "rows": row_count, "seconds": by_engine})
            console.print(cases)
            yield cases


def measure_size(stack: Stack, s3: S3Server, row_count: int) -> dict[str, float]:
    """Return the median seconds of each step over tables of so many rows; the first round warms."""
    client = Client(stack)
    client.register(write_playbook(row_count, s3.bucket))
    rounds: list[dict[str, float]] = []
    for turn in range(1 + ROUNDS.get(row_count, 1)):
        execution_id = client.submit("bench/crossovers")
        client.wait(execution_id)
        check_answers(client.read_variables(execution_id), row_count)
        if turn:
            rounds.append(asyncio.run(_read_seconds(stack, execution_id)))
    return {step: round(statistics.median(item[step] for item in rounds), 3) for step in rounds[0]}


def list_engines(row_count: int) -> list[str]:
    """Name the engines that can hold so many rows."""
    return [name for name in ENGINES if name != "python" or row_count <= PYTHON_ROWS_MAX]


def check_answers(variables: dict[str, Any], row_count: int) -> None:
    """Fail unless every engine found the same, and wrote every row."""
    for engine in list_engines(row_count):
        for work in ("sum", "join"):
            assert variables[f"{work}_{engine}"] == variables[f"{work}_duckdb"], (work, engine)
        assert variables[f"sort_{engine}"] == row_count, (engine, variables)


def write_playbook(row_count: int, bucket: str) -> str:
    """Write the steps: the tables first, then each work by each engine in turn."""
    key_count = max(GROUPS, row_count // 10)
    words = {"ROWS": str(row_count), "KEYS": str(key_count)}
    steps: dict[str, dict[str, Any]] = {
        "files": {
            "kind": "duckdb",
            "commands": [
                f"COPY ({_fill_in(ROWS_SQL, words)}) TO 't.parquet'",
                f"COPY ({_fill_in(KEYS_SQL, words)}) TO 'd.parquet'",
                "SELECT 1 AS n",
            ],
        },
        "tables": {"kind": "postgres", "auth": "crossovers", "query": _fill_in(FILL_SQL, words)},
        "session": {"kind": "spark", "sql": "SELECT 1 AS n"},
    }
    for work in WORKS:
        for engine in list_engines(row_count):
            steps[f"{work}_{engine}"] = write_tool(work, engine, bucket)
    text = f"{HEAD}metadata: {{name: crossovers, path: bench/crossovers}}\nworkflow:\n"
    following = [*list(steps)[1:], None]
    for (step, tool), after in zip(steps.items(), following, strict=True):
        line: dict[str, Any] = {"step": step, "tool": tool}
        if "_" in step:
            line["set"] = {f"ctx.{step}": write_answer(step)}
        if after:
            line["next"] = after
        text += f"  - {msgspec.json.encode(line).decode()}\n"
    return text


def write_tool(work: str, engine: str, bucket: str) -> dict[str, Any]:
    """Write the task of a work by an engine."""
    if engine == "python":
        return {"kind": "python", "code": PYTHON[work]}
    tool: dict[str, Any] = {"kind": engine, "sql" if engine == "spark" else "query": SQL[work]}
    if engine == "postgres":
        tool["auth"] = "crossovers"
    else:
        names = ("t", "d") if work == "join" else ("t",)
        tool["inputs"] = {name: {"path": f"{name}.parquet"} for name in names}
    if work == "sort":
        path = f"s3://{bucket}/sorted-{engine}/"
        tool["output"] = {"path": path, "auth": "lake", "mode": "overwrite"}
    return tool


def write_answer(step: str) -> str:
    """Write the template of what has to be equal among the engines."""
    work, _, engine = step.partition("_")
    rows = step if engine == "python" else f"{step}.rows"
    if work != "sort":
        return f"{{{{ [{rows} | length, {rows} | map(attribute='total') | sum] }}}}"
    return f"{{{{ {step}[0].total }}}}" if engine == "python" else f"{{{{ {step}.row_count }}}}"


def _fill_in(text: str, words: dict[str, str]) -> str:
    for word, value in words.items():
        text = text.replace(word, value)
    return text


async def _read_seconds(stack: Stack, execution_id: str) -> dict[str, float]:
    connection = await asyncpg.connect(stack.url("postgres_reader"))
    try:
        rows = await connection.fetch(TIMES, int(execution_id))
    finally:
        await connection.close()
    return {row["step"]: row["seconds"] for row in rows}


def write_table(cases: list[dict[str, Any]]) -> str:
    """Write the seconds of every case, the least of each in bold."""
    lines = [f"| work | rows | {' | '.join(ENGINES)} |", f"|---|---:|{'---:|' * len(ENGINES)}"]
    for case in cases:
        least = min(found for found in case["seconds"].values() if found is not None)
        cells = [_write_cell(case["seconds"][engine], least) for engine in ENGINES]
        lines.append(f"| {WORKS[case['work']]} | {case['rows']:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _write_cell(seconds: float | None, least: float) -> str:
    if seconds is None:
        return ""
    return f"**{seconds:.2f}**" if seconds == least else f"{seconds:.2f}"


def draw_plot(cases: list[dict[str, Any]], work: str) -> bytes:
    """Draw the seconds of each engine over the rows, both by powers of ten."""
    chart = pygal.XY(
        title=f"Seconds of a task: {WORKS[work]}",
        x_title="rows",
        y_title="seconds",
        logarithmic=True,
        x_labels=sorted({case["rows"] for case in cases}),
        y_labels=SECONDS_SHOWN,
        x_value_formatter=lambda rows: f"{rows:,.0f}",
        value_formatter=lambda seconds: f"{seconds:g}",
        truncate_label=-1,
        margin_right=45,
        range=(SECONDS_SHOWN[0], SECONDS_SHOWN[-1]),
        style=CleanStyle,
        js=[],
        width=900,
        height=420,
        legend_at_bottom=True,
    )
    for engine in ENGINES:
        points = [
            (case["rows"], case["seconds"][engine])
            for case in cases
            if case["work"] == work and case["seconds"][engine] is not None
        ]
        chart.add(engine, points)
    drawn: bytes = chart.render(is_unicode=False)
    return drawn


if __name__ == "__main__":
    main()
