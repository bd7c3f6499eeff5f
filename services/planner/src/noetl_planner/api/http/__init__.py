"""What every route needs of HTTP."""
