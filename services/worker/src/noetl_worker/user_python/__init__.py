"""What user Python runs with: its packages, its network, and how its errors are told."""
