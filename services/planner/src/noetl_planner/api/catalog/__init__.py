"""Routes of playbooks and plans."""
