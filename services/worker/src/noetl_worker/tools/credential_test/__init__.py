"""Tests of credentials, by type."""
