"""Parts that Spark's executors write say what a reader has to hold, however well they pack."""

from typing import Any

import pyarrow as pa
import pytest

from noetl_contracts.ids import OrganizationId, TenantId
from noetl_worker.spark.tables import part_writer
from noetl_worker.spark.tables.part_writer import FrameWriter, WritePlan
from noetl_worker.spark.tables.store_access import StoreAddress

ROWS = 100_000
HOME = StoreAddress(url="memory:", tenant_id=TenantId("t"), organization_id=OrganizationId("o"))


@pytest.mark.parametrize("changes", [{}, {"format": "parquet"}, {"partition_by": ("region",)}])
def test_a_table_that_packs_well_counts_as_large_as_its_columns(changes: dict[str, Any]) -> None:
    regions = ["eu"] * (ROWS // 2) + ["us"] * (ROWS // 2)
    batch = pa.RecordBatch.from_pydict({"region": regions, "status": ["the same"] * ROWS})
    plan = WritePlan(home=HOME, **changes)
    manifests = list(FrameWriter(plan).write_parts(iter([batch])))
    packed = sum(len(manifest.data or b"") for manifest in manifests)
    found = part_writer.build_spread(manifests, plan, batch.schema.names)
    assert found.row_count == ROWS
    assert found.payload_bytes == pytest.approx(batch.nbytes, rel=0.01)
    if plan.format == "parquet":
        assert packed < batch.nbytes / 100


def test_parts_are_cut_where_any_value_changes_and_null_is_one() -> None:
    batch = pa.RecordBatch.from_pydict(
        {"a": [1, 1, None, None, None, 2], "b": ["x", "x", "x", None, None, None], "n": range(6)}
    )
    plan = WritePlan(home=HOME, partition_by=("a", "b"))
    parts = list(FrameWriter(plan).write_parts(iter([batch])))
    assert [(part.values, part.row_count) for part in parts] == [
        ([1, "x"], 2),
        ([None, "x"], 1),
        ([None, None], 2),
        ([2, None], 1),
    ]
