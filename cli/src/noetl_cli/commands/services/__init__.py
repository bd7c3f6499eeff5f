"""Verbs that start, watch and stop a stack."""
