"""The embedded servers: PostgreSQL, NATS, SeaweedFS."""
