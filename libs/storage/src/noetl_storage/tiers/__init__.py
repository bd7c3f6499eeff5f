"""Faster places in front of the payload store."""
