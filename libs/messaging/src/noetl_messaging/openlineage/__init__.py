"""Lineage over HTTP, as OpenLineage's receivers take it."""
