"""The child process in which user Python runs: limits, contracts, nothing of the worker."""
