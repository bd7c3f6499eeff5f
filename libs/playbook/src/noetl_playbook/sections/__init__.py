"""Readers of the sections of a document."""
