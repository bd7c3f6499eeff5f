"""How routes find executions and their views."""
