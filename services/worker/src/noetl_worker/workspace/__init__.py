"""The files of an execution: the same on every worker that runs a step."""
