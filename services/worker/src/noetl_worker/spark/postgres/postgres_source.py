"""PostgreSQL as a data source of Spark: each task copies its share of a planned read."""

from collections.abc import Iterator, Sequence
from contextlib import closing

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from noetl_contracts.ids import OrganizationId, TenantId
from noetl_worker.spark.grants.job_grant import JobGrant
from noetl_worker.spark.postgres import read_columns, read_plan
from noetl_worker.spark.postgres.server_connection import open_arrow_session
from noetl_worker.spark.tables import named_tables, store_access
from noetl_worker.spark.tables.store_access import StoreAddress

NAME = "noetl_postgres"


class SharePartition(InputPartition):
    """The rows of one task, as a condition on them."""

    def __init__(self, condition: str) -> None:
        super().__init__(condition)
        self.condition = condition


class PostgresSource(DataSource):
    """A query's or table's rows.

    Options: `store`, `tenant`, `organization`, `credential`, and `plan`, which
    `shared_snapshots.plan_reads` adds.
    """

    grant: JobGrant | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    def schema(self) -> StructType:
        """Return the columns of the plan."""
        plan = read_plan.decode_plan(self.options["plan"])
        return named_tables.build_spark_schema(read_columns.build_schema(plan.columns))

    def reader(self, schema: StructType) -> "PostgresReader":  # noqa: ARG002 - Spark's own signature
        """Return a reader of the plan."""
        return PostgresReader(dict(self.options), self.grant)


class PostgresReader(DataSourceReader):
    """Reads each share of a plan by a connection of its own, all under one snapshot."""

    def __init__(self, options: dict[str, str], grant: JobGrant | None = None) -> None:
        self._options = options
        self._grant = grant

    def partitions(self) -> Sequence[InputPartition]:
        """Return the shares of the plan."""
        plan = read_plan.decode_plan(self._options["plan"])
        return [SharePartition(condition) for condition in plan.conditions]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a share as they come; raises `SparkRefusal`."""
        assert isinstance(partition, SharePartition), "Spark hands back what `partitions` gave"
        options = self._options
        plan = read_plan.decode_plan(options["plan"])
        home = StoreAddress(
            url=options["store"],
            tenant_id=TenantId(options["tenant"]),
            organization_id=OrganizationId(options["organization"]),
            grant=self._grant,
        )
        credential = options["credential"]
        fields = store_access.open_credential_fields(home, credential)
        with open_arrow_session(fields, credential=credential, about=plan.about) as session:
            session.begin_reading(plan.snapshot)
            reading = session.read_batches(plan.build_statement(partition.condition))
            # A connection closes after its cursors, also when a value is refused.
            with closing(reading) as batches:
                for batch in batches:
                    yield from read_columns.convert_batch(batch, plan.columns, about=plan.about)
