"""What workers and clients send: facts, inbox messages, requests."""
