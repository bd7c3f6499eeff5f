"""The folder of one stack: options, keys, state."""
