"""Audits of many executions at once, from the ledger and its archive."""
