"""The command line and the embedded stack."""
