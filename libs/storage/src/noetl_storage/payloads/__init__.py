"""The payload port on files, S3 and memory."""
