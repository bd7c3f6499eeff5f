"""The workload of the pipeline fault test."""
