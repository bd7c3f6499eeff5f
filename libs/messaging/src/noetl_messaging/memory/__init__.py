"""The reference adapter of every messaging port: a server within the process."""
