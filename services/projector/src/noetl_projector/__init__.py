"""Folds events into projections."""
