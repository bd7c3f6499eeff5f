"""Data sources of Spark that carry the grant of a job in their pickled form."""

import types

from pyspark.sql.datasource import DataSource

from noetl_worker.spark.grants.job_grant import JobGrant


def bind_grant(source: type[DataSource], grant: JobGrant | None) -> type[DataSource]:
    """Return a data source with a grant; no option, plan or listing of Spark shows it."""
    return types.new_class(
        f"Granted{source.__name__}", (source,), exec_body=lambda body: body.update(grant=grant)
    )
