"""Where the projector reads histories."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from noetl_chassis.seals.payload_keys import read_payload_seals
from noetl_projector.settings import Settings
from noetl_storage.archive.archive_reader import ArchivedReader, ArchiveReader
from noetl_storage.payloads import master_keys
from noetl_storage.payloads.factory import open_payloads
from noetl_storage.ports.ledger_ports import LedgerReader
from noetl_storage.postgres.database import Database
from noetl_storage.postgres.ledger.ledger import PostgresLedger
from noetl_storage.postgres.ledger.retention import PostgresArchiveIndex

# What was archived is rarely read again.
_PAYLOAD_THREADS = 2


@asynccontextmanager
async def open_ledger(config: Settings, database: Database) -> AsyncIterator[LedgerReader]:
    """Read histories in the ledger, and in the archive where the payload store is known."""
    ledger, index = PostgresLedger(database), PostgresArchiveIndex(database)
    if not config.payload_url:
        yield ArchivedReader(ledger, ArchiveReader(index, None))
        return
    async with open_payloads(
        config.payload_url,
        access_key=config.payload_access_key or None,
        secret_key=config.payload_secret_key or None,
        threads_max=_PAYLOAD_THREADS,
        seals=read_payload_seals(
            config.payload_seal_key,
            file=config.payload_seal_file,
            managed=master_keys.open_managed_keys,
        ),
    ) as payloads:
        yield ArchivedReader(ledger, ArchiveReader(index, payloads))
