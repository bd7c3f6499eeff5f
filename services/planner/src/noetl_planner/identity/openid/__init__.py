"""Tokens of identity providers, how people sign in with them, and sessions of browsers."""
