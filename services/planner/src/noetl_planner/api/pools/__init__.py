"""Routes of pools and workers."""
