"""Keys of a workload that its sender does not set."""

# Set by each firing of a schedule: its name and the time that it was due.
SCHEDULE = "schedule"
# Set by each notification: which execution ended, how, and the rule that waited for it.
NOTIFICATION = "notification"
