"""Routes of events, replay, evidence and lineage."""
