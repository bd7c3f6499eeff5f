"""Items of loops: which completed, which failed and why, and what a rerun of these takes over."""
