"""The code of Spark tasks: a process of its own, and how it shares the worker's session."""
