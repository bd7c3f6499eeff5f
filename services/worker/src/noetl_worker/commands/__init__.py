"""A command in the worker: lease, context, reports."""
