"""How services are told: streams, consumers, deliveries."""
