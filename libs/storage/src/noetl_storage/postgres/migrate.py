"""Forward-only schema steps: numbered, checksummed, each in one transaction under one lock."""

import re
from importlib import resources

from msgspec import Struct

from noetl_contracts import codec
from noetl_storage.ports.errors import SchemaMismatch
from noetl_storage.postgres import queries
from noetl_storage.postgres.database import Database, Transaction

_QUERIES = queries.load_queries("migrate")
_FILE = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")
_WAY_OUT = (
    "run `python -m noetl_storage migrate`, which is the job `migrate` of compose and of the chart "
    "platform"
)


class Migration(Struct, frozen=True, kw_only=True):
    """One step of the schema."""

    version: int
    name: str
    checksum: str
    statements: str


def list_migrations() -> list[Migration]:
    """Read the steps of this release, in order; raises `SchemaMismatch` for a gap."""
    folder = resources.files(__package__) / "migrations"
    migrations = []
    for entry in folder.iterdir():
        match = _FILE.fullmatch(entry.name)
        if match is not None:
            text = entry.read_text("utf-8")
            migrations.append(
                Migration(
                    version=int(match[1]),
                    name=match[2],
                    checksum=codec.digest_hex(text.encode()),
                    statements=text,
                )
            )
    migrations.sort(key=lambda step: step.version)
    if [step.version for step in migrations] != list(range(1, len(migrations) + 1)):
        raise SchemaMismatch("the migrations of this release are not numbered without a gap")
    return migrations


async def apply_migrations(database: Database) -> list[str]:
    """Take the steps that are missing; return their names. Safe to run twice, and at once."""
    migrations = []
    for step in list_migrations():
        async with database.open_transaction() as transaction:
            await _lock_migrations(transaction)
            if not await _is_applied(transaction, step):
                await transaction.execute_statement(step.statements)
                await transaction.execute_statement(
                    _QUERIES["note"], step.version, step.name, step.checksum
                )
                migrations.append(f"{step.version:04d}_{step.name}")
    return migrations


async def has_schema(database: Database) -> bool:
    """Tell whether a database was migrated before, by any release."""
    return bool(await database.get_value(_QUERIES["exists"]))


async def verify_schema(database: Database) -> int:
    """Return the schema's version; raises `SchemaMismatch` when this release cannot run on it.

    Steps that a newer release has taken are accepted: old code runs on the new schema.
    """
    if not await has_schema(database):
        raise SchemaMismatch(f"the database has no schema: {_WAY_OUT}")
    applied = {row["version"]: row for row in await database.fetch_rows(_QUERIES["list_applied"])}
    for step in list_migrations():
        row = applied.get(step.version)
        if row is None:
            raise SchemaMismatch(
                f"the database lacks step {step.version:04d}_{step.name}: {_WAY_OUT}"
            )
        _check_checksum(step, row["checksum"])
    return max(int(version) for version in applied)


async def _lock_migrations(transaction: Transaction) -> None:
    """Let one migrator in at a time, and make the table of applied migrations if there is none."""
    await transaction.execute_statement(_QUERIES["lock"])
    await transaction.execute_statement(_QUERIES["create_schema"])
    await transaction.execute_statement(_QUERIES["create_migration_table"])


async def _is_applied(transaction: Transaction, step: Migration) -> bool:
    for row in await transaction.fetch_rows(_QUERIES["list_applied"]):
        if row["version"] == step.version:
            _check_checksum(step, row["checksum"])
            return True
    return False


def _check_checksum(step: Migration, checksum: str) -> None:
    if checksum != step.checksum:
        raise SchemaMismatch(
            f"step {step.version:04d}_{step.name} was changed after the database took it: "
            "a step is never edited, add another one"
        )
