"""Starts Spark's Python processes as copies of one that has loaded what they need.

Spark begins one for each table that it plans to read, and they would take half a second each to
load the readers. Named by `spark.python.daemon.module`.
"""

import pyarrow.compute
import pyarrow.dataset
import pyarrow.parquet  # noqa: F401
from pyspark import daemon, worker  # noqa: F401
from pyspark.sql.worker import (  # noqa: F401
    create_data_source,
    data_source_pushdown_filters,
    lookup_data_sources,
    plan_data_source_read,
    write_into_data_source,
)

from noetl_worker.spark.postgres import postgres_source  # noqa: F401
from noetl_worker.spark.tables import file_source, named_tables, payload_source  # noqa: F401

if __name__ == "__main__":
    daemon.manager()
