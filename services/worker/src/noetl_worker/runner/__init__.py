"""Commands and frames as a worker runs them."""
