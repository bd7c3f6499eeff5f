"""The lines that tasks write while they run: split, masked, and stored in chunks."""
