"""The rows of a stream that do not fit: noted batch by batch, and no more than a result holds.

Tasks write theirs below the token of their attempt: another attempt may cut the batch into other
tasks. The sum of a batch is written once, and later attempts read nothing else.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from noetl_chassis import identity
from noetl_contracts import codec
from noetl_worker.datasets.csv_rows import REJECTS_SHOWN_MAX, Rejects
from noetl_worker.spark.tables import file_source, store_access
from noetl_worker.spark.tables.file_source import ReportedRejects
from noetl_worker.spark.tables.store_access import SparkRefusal
from noetl_worker.spark.tables.stream_plans import StreamPlan

# Of all batches of a run together: its result holds them.
DIVERTED_ROWS_MAX = 10_000


class StreamRejects:
    """Counts the rows that batches leave out; methods block, and raise `SparkRefusal`."""

    def __init__(self, plan: StreamPlan) -> None:
        self._plan = plan
        self._owner: Any = {
            "tenant_id": plan.home.tenant_id,
            "organization_id": plan.home.organization_id,
        }
        # That with which the latest batch ends that was added.
        self._last_step = 0
        self._sums_prefix = f"{plan.rejects}/batches/"
        self.tasks_prefix = f"{plan.rejects}/tasks/{identity.mint_token()}"
        self.found = Rejects()

    @property
    def is_wanted(self) -> bool:
        """Tell whether rows that do not fit are left out; else they end the task."""
        return self._plan.source.on_bad_row != "fail"

    def restore(self) -> None:
        """Take up what batches of earlier attempts have left out."""
        if not self.is_wanted:
            return
        names = self._run(lambda payloads: payloads.list_names(self._sums_prefix, **self._owner))
        for name in sorted(names):
            data = self._find_sum(name)
            if data is not None:
                self._add_batch(int(name.rpartition("/")[2]), data)

    def take_batch(self, step: int) -> None:
        """Add what the tasks of the batch that ends with a step have left out.

        A batch that is there already is not added again.
        """
        if not self.is_wanted or step <= self._last_step:
            return
        tasks_name = build_batch_prefix(self.tasks_prefix, step)
        batch = file_source.read_rejects(self._plan.home, tasks_name)
        if not batch.count:
            self._last_step = step
            return
        rows = batch.rows if self._is_diverting else batch.rows[:REJECTS_SHOWN_MAX]
        data = codec.encode_json(ReportedRejects(count=batch.count, rows=list(rows)))
        name = f"{self._sums_prefix}{step:012d}"
        before = self._run(lambda payloads: payloads.put_named(name, data, **self._owner))
        self._add_batch(step, before or data)

    def _find_sum(self, name: str) -> bytes | None:
        found: bytes | None = self._run(lambda payloads: payloads.find_named(name, **self._owner))
        return found

    @property
    def _is_diverting(self) -> bool:
        return self._plan.source.on_bad_row == "divert"

    def _add_batch(self, step: int, data: bytes) -> None:
        batch = msgspec.json.decode(data, type=ReportedRejects)
        self._last_step = step
        self.found.count += batch.count
        if not self._is_diverting:
            room = REJECTS_SHOWN_MAX - len(self.found.rows)
            self.found.rows += batch.rows[: max(0, room)]
            return
        self.found.rows += batch.rows
        if len(self.found.rows) > DIVERTED_ROWS_MAX:
            raise SparkRefusal("limit", self._describe_limit(batch))

    def _describe_limit(self, batch: ReportedRejects) -> str:
        row = batch.rows[-1]
        return (
            f"input '{self._plan.name}': {self.found.count} rows of this run do not fit, such as "
            f"line {row['line']} of {row['file']} ({row['reason']}), and a run tells of "
            f"{DIVERTED_ROWS_MAX}: correct what writes the files, give the run an end with "
            "follow.until, or choose on_bad_row: skip, which counts them. The batch is written, "
            "and the next run goes on after it"
        )

    def _run(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        return store_access.run_with_store(self._plan.home, work)


def build_batch_prefix(tasks_prefix: str, step: int) -> str:
    """Name the place where the tasks of the batch that ends with a step tell of rows."""
    return f"{tasks_prefix}/{step:012d}"
