"""The playbook language: text in, model out."""
