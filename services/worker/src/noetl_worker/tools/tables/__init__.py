"""Tables in files and payloads."""
