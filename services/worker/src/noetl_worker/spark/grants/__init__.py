"""What the executors of one job may open: made in the worker, used by executors."""
