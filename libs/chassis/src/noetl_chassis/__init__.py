"""How a process lives: settings, clock, loop, health, telemetry."""
