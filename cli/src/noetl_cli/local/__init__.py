"""A playbook in one process: the same services over memory, gone when it ends."""
