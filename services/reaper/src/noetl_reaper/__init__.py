"""Notices what should have happened and did not."""
