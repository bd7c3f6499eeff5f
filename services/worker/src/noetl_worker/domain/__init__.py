"""Pure decisions of the worker: no clock, no input or output."""
