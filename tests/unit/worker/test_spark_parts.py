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
    packed = sum(len(one.data or b"") for one in manifests)
    found = part_writer.build_spread(manifests, plan, batch.schema.names)
    assert found.row_count == ROWS
    assert found.payload_bytes == pytest.approx(batch.nbytes, rel=0.01)
    if plan.format == "parquet":
        assert packed < batch.nbytes / 100
