"""Payloads as a task loads and stores them."""
