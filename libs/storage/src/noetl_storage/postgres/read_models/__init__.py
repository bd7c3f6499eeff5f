"""Projections and audits in PostgreSQL."""
