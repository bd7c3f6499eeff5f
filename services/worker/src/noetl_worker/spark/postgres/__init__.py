"""PostgreSQL in Spark: executors read by binary `COPY` into Arrow, and write by `COPY` of texts."""
