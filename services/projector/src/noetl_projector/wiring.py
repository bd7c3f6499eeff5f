"""Where the projector reads histories."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from noetl_chassis.payload_sealing import read_keys
from noetl_projector.settings import Settings
from noetl_storage.archive.reading import Archive, ArchivedReader
from noetl_storage.payloads import managed
from noetl_storage.payloads.open import open_payloads
from noetl_storage.ports import LedgerReader
from noetl_storage.postgres.database import Database
from noetl_storage.postgres.ledger import PostgresLedger
from noetl_storage.postgres.retention import PostgresArchiveIndex

# What was archived is rarely read again.
_PAYLOAD_THREADS = 2


@asynccontextmanager
async def open_ledger(config: Settings, database: Database) -> AsyncIterator[LedgerReader]:
    """Read histories in the ledger, and in the archive where the payload store is known."""
    ledger, index = PostgresLedger(database), PostgresArchiveIndex(database)
    if not config.payload_url:
        yield ArchivedReader(ledger, Archive(index, None))
        return
    async with open_payloads(
        config.payload_url,
        access_key=config.payload_access_key or None,
        secret_key=config.payload_secret_key or None,
        threads_max=_PAYLOAD_THREADS,
        seals=read_keys(
            config.payload_seal_key, file=config.payload_seal_file, managed=managed.open_keys
        ),
    ) as payloads:
        yield ArchivedReader(ledger, Archive(index, payloads))
