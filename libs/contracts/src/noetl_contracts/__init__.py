"""Everything that crosses a process boundary."""
