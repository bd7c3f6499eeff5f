"""What the planner decides: pure functions of a state, a fact, a playbook and a time."""
