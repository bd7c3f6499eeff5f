"""Files that the command line reads and writes."""
