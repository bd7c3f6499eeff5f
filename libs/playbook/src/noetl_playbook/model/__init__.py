"""The playbook as values."""
