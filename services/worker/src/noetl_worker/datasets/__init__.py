"""Datasets in folders and buckets, and lake tables: read in pieces, written in committed files."""
