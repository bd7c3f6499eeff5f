"""Diagnostics of a playbook, with their codes."""
