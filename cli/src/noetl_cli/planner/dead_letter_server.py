"""Dead letters asked of the messaging server itself, as its admin: for when no planner runs."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from noetl_cli.errors import CliError, StackError
from noetl_contracts.errors import NoetlError
from noetl_contracts.requests.dead_letters import decode_for_display
from noetl_messaging.jetstream.connection import ConnectionTimeouts, open_connection
from noetl_messaging.jetstream.dead_letters import JetStreamDeadLetters
from noetl_messaging.streams.ports import DeadLetter, DeadLetters

T = TypeVar("T")

CONNECT_S = 5.0
Letters = list[dict[str, Any]]


def list_letters(url: str, *, after: int, letters_max: int) -> tuple[Letters, bool]:
    """Return the oldest letters after a number, and whether there are more."""
    dead_letters = _run_with_letters(
        url, lambda box: box.list_letters(letters_max=letters_max + 1, after=after)
    )
    return [_letter_summary(dead_letter) for dead_letter in dead_letters[:letters_max]], len(
        dead_letters
    ) > letters_max


def get_letter(url: str, sequence: int) -> dict[str, Any]:
    """Return a letter with its message; raises `CliError`."""
    dead_letter = _run_with_letters(url, lambda box: box.get_letter(sequence))
    return {**_letter_summary(dead_letter), "message": decode_for_display(dead_letter.data)}


def requeue_letters(url: str, sequences: list[int] | None, *, letters_max: int) -> list[int]:
    """Send letters again, all of them when none is named; return their numbers."""

    async def requeue_each(box: DeadLetters) -> list[int]:
        chosen = sequences or [
            dead_letter.sequence for dead_letter in await box.list_letters(letters_max=letters_max)
        ]
        for sequence in chosen:
            await box.requeue_letter(sequence)
        return chosen

    return _run_with_letters(url, requeue_each)


def _run_with_letters(url: str, question: Callable[[DeadLetters], Awaitable[T]]) -> T:
    async def open_and_run() -> T:
        async with _open_dead_letters(url) as box:
            return await question(box)

    try:
        return asyncio.run(open_and_run())
    except KeyError as missing:
        raise CliError(
            f"There is no dead letter {missing}.", way_out="List them with: noetl dlq ls"
        ) from missing
    except NoetlError as failure:
        raise StackError(
            f"The dead letters cannot be reached: {failure}",
            way_out="Check the stack with: noetl doctor",
        ) from failure


@asynccontextmanager
async def _open_dead_letters(url: str) -> AsyncIterator[DeadLetters]:
    waits = ConnectionTimeouts(connect_s=CONNECT_S)
    async with open_connection(url, name="noetl-cli", waits=waits) as connection:
        yield JetStreamDeadLetters(connection)


def _letter_summary(dead_letter: DeadLetter) -> dict[str, Any]:
    return {
        "sequence": dead_letter.sequence,
        "stream": dead_letter.stream,
        "consumer": dead_letter.consumer,
        "subject": dead_letter.subject,
        "delivered": dead_letter.delivered,
        "requeued": dead_letter.requeued,
        "reason": dead_letter.reason,
        "bytes": len(dead_letter.data),
        "buried_at": None if dead_letter.buried_at is None else dead_letter.buried_at.isoformat(),
    }
