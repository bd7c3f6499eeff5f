"""Events that have left the ledger: written, read back, and found again."""
