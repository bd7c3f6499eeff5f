"""The `container` tool: an image run on Docker, or as a Job of Kubernetes."""
