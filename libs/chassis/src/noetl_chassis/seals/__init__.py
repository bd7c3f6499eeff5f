"""Encryption of credentials and payloads."""
