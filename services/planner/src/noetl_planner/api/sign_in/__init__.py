"""Routes by which people sign in and out with a browser."""
