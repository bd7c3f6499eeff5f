"""Spark: where its Java is, and one warm session."""
