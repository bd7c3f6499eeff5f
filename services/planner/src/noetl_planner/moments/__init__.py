"""Folds of histories that pages look at."""
