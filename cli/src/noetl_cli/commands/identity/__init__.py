"""Verbs about signing in."""
