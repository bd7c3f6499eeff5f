"""Sessions of people in memory."""

from datetime import datetime

from msgspec import structs

from noetl_contracts.sessions import Session
from noetl_storage.memory.store import MemoryStore


class MemorySessions:
    """Keeps who is signed in with a browser."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def put_session(self, session: Session) -> None:
        """Keep a new session."""
        self._store.session_by_hash[session.session_hash] = session

    async def find_session(self, session_hash: str, *, now: datetime) -> Session | None:
        """Return a session that is neither revoked nor over, or None."""
        session = self._store.session_by_hash.get(session_hash)
        is_open = session is not None and session.revoked_at is None and session.expires_at > now
        return session if is_open else None

    async def revoke_session(self, session_hash: str, *, now: datetime) -> bool:
        """End a session; False when none was open."""
        session = self._store.session_by_hash.get(session_hash)
        if session is None or session.revoked_at is not None:
            return False
        self._store.session_by_hash[session_hash] = structs.replace(session, revoked_at=now)
        return True

    async def revoke_person_sessions(self, issuer: str, subject: str, *, now: datetime) -> int:
        """End every session of a person; return how many were open."""
        person_hashes = [
            session.session_hash
            for session in self._store.session_by_hash.values()
            if (session.issuer, session.subject) == (issuer, subject)
        ]
        revoked = [await self.revoke_session(digest, now=now) for digest in person_hashes]
        return sum(revoked)

    async def forget_sessions(self, *, before: datetime, sessions_max: int) -> int:
        """Remove sessions that were over before a time, the oldest first; return how many."""
        ended = sorted(
            (
                session
                for session in self._store.session_by_hash.values()
                if session.expires_at <= before
            ),
            key=lambda session: session.expires_at,
        )[:sessions_max]
        for session in ended:
            del self._store.session_by_hash[session.session_hash]
        return len(ended)
