"""Verbs that replay, audit and keep histories."""
