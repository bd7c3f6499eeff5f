"""Streams, consumers and the ports of a message broker."""
