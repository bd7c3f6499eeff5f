"""Events as they are stored, and the records around them."""
