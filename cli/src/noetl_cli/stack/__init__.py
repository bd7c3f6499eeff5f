"""The embedded stack: real servers and the five services under one supervisor."""
