"""Loops, cursors, frames and reduces."""
