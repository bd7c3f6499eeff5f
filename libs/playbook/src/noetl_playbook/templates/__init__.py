"""What one template may cost, and what was rendered of it elsewhere."""
