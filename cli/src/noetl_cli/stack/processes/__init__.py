"""Processes of one stack: ports, users, probes."""
