"""structlog without rich, which takes 4 MiB and draws tracebacks that services write as lines."""

from noetl_contracts.optional_modules import hide_modules

with hide_modules("rich"):
    import structlog

__all__ = ["structlog"]
