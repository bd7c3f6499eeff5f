"""Entries and tokens of keychains."""
