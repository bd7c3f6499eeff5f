"""What every ledger adapter shares."""
