"""What a sweep is made of."""
