"""Results of loops, collected outside of decisions."""
