"""Verbs that start, show and control executions."""
