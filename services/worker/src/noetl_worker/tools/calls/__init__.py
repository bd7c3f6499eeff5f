"""What every tool is given, and how calls end."""
