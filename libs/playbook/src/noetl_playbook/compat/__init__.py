"""Rewrites older constructs as canonical ones: plain values in, plain values out."""
