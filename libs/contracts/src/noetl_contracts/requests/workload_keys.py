"""Keys of a workload that its sender does not set."""

# Set by each firing of a schedule: its name and the time that it was due.
SCHEDULE = "schedule"
