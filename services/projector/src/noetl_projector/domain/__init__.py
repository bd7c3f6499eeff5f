"""What a projector decides without touching anything."""
