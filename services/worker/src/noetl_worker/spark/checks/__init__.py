"""Checks of Spark: what SQL of tasks may do, and what is expected of rows that are written."""
