"""The console: its files, and where each of its pages is found as JSON."""
