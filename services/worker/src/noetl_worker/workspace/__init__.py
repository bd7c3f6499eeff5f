"""The files of an execution: the same on whichever worker a step runs."""
