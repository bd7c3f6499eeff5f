"""What is kept: ledger, outbox, projections, payloads."""
