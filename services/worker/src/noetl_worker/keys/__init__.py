"""Secrets beyond stored credentials: fetched tokens and the playbook's keychain."""
