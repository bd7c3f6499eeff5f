"""Drafts of decisions, and the rules that all of them share."""
