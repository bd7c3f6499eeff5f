"""The tasks of a step, one after another."""
