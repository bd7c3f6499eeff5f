"""Verbs that send to executions and start them by time or message."""
