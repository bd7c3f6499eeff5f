"""Containers as Jobs of Kubernetes."""
