"""The PFT reference workload: fixture server, verifier, raw floor."""
