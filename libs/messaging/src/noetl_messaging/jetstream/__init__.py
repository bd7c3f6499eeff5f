"""JetStream through nats-py: the only home of the driver."""
