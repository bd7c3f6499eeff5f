"""What surrounds a decision: states kept, messages sent, shards owned."""
