"""Sessions of people on PostgreSQL."""

from datetime import datetime

import asyncpg

from noetl_contracts.identity.role_bindings import Session
from noetl_storage.postgres import queries
from noetl_storage.postgres.database import Database

_QUERIES = queries.load_queries("sessions")


class PostgresSessions:
    """Keeps who is signed in with a browser."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put_session(self, session: Session) -> None:
        """Keep a new session."""
        await self._database.execute_statement(
            _QUERIES["put"],
            session.session_hash,
            session.issuer,
            session.subject,
            session.name,
            session.email,
            list(session.groups),
            session.created_at,
            session.expires_at,
        )

    async def find_session(self, session_hash: str, *, now: datetime) -> Session | None:
        """Return a session that is neither revoked nor over, or None."""
        row = await self._database.find_row(_QUERIES["find"], session_hash, now)
        return None if row is None else _build_session(row)

    async def revoke_session(self, session_hash: str, *, now: datetime) -> bool:
        """End a session; False when none was open."""
        row = await self._database.find_row(_QUERIES["revoke"], session_hash, now)
        return row is not None

    async def revoke_person_sessions(self, issuer: str, subject: str, *, now: datetime) -> int:
        """End every session of a person; return how many were open."""
        rows = await self._database.fetch_rows(_QUERIES["revoke_person"], issuer, subject, now)
        return len(rows)

    async def forget_sessions(self, *, before: datetime, sessions_max: int) -> int:
        """Remove sessions that were over before a time, the oldest first; return how many."""
        rows = await self._database.fetch_rows(_QUERIES["forget"], before, sessions_max)
        return len(rows)


def _build_session(row: asyncpg.Record) -> Session:
    return Session(
        session_hash=row["session_hash"],
        issuer=row["issuer"],
        subject=row["subject"],
        name=row["name"],
        email=row["email"],
        groups=tuple(row["groups"]),
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        revoked_at=row["revoked_at"],
    )
