"""Routes by which workers claim and report."""
