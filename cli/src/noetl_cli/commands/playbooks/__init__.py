"""Verbs that check and register playbooks."""
