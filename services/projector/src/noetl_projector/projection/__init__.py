"""What a turn of the projector is made of."""
