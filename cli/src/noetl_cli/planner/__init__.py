"""The planner's HTTP API as the command line calls it."""
