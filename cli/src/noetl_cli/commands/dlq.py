"""`noetl dlq`: messages that their consumers gave up; look at them, send them again."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from noetl_cli import render, settings, tables
from noetl_cli.commands.options import AsJson, Directory
from noetl_cli.failures import CliError, ExitCode, StackError
from noetl_cli.stack import state
from noetl_cli.stack.home import Home
from noetl_contracts import codec
from noetl_contracts.errors import NoetlError
from noetl_messaging.jetstream.connection import Waits, open_connection
from noetl_messaging.jetstream.dead_letters import JetStreamDeadLetters
from noetl_messaging.ports import DeadLetter, DeadLetters

T = TypeVar("T")

CONNECT_S = 5.0
LETTERS_MAX = 10_000

app = typer.Typer(no_args_is_help=True, help="Look at dead letters and send them again.")

Nats = Annotated[
    str | None, typer.Option("--nats", help="The server's address (default: `up`'s, as admin).")
]
Sequence = Annotated[int, typer.Argument(metavar="SEQUENCE", min=1, help="The letter's number.")]


@app.command("ls")
def list_letters(
    *,
    limit: Annotated[
        int, typer.Option(min=1, max=LETTERS_MAX, help="How many, oldest first.")
    ] = 50,
    nats: Nats = None,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """List dead letters, oldest first."""
    found = _ask(lambda box: box.list_letters(letters_max=limit), nats=nats, directory=directory)
    if as_json:
        render.json_line([_summary(letter) for letter in found])
        return
    rows = [
        (str(one.sequence), one.stream, one.consumer, str(one.delivered), one.reason)
        for one in found
    ]
    tables.show(
        ("SEQUENCE", "STREAM", "CONSUMER", "DELIVERED", "REASON"), rows, nothing="No dead letters."
    )


@app.command("show")
def show(
    sequence: Sequence, *, nats: Nats = None, directory: Directory = None, as_json: AsJson = False
) -> None:
    """Show one letter with its message."""
    letter = _ask(lambda box: box.get(sequence), nats=nats, directory=directory)
    if as_json:
        render.json_line({**_summary(letter), "message": _readable(letter.data)})
        return
    for name, value in _summary(letter).items():
        render.line(f"{name:<10} {value}")
    render.line("")
    render.line(_pretty(letter.data))


@app.command("requeue")
def requeue(
    sequences: Annotated[
        list[int] | None, typer.Argument(metavar="SEQUENCE...", help="The letters' numbers.")
    ] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Every letter.")] = False,
    nats: Nats = None,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Send letters again under their own subjects; a letter that was sent goes away."""
    if bool(sequences) == everything:
        raise CliError(
            "Say which letters, or --all, but not both.",
            way_out="List them with: noetl dlq ls",
            exit_code=ExitCode.USAGE,
        )

    async def send(box: DeadLetters) -> list[int]:
        chosen = sequences or [
            letter.sequence for letter in await box.list_letters(letters_max=LETTERS_MAX)
        ]
        for sequence in chosen:
            await box.requeue(sequence)
        return chosen

    sent = _ask(send, nats=nats, directory=directory)
    if as_json:
        render.json_line({"requeued": sent})
    else:
        render.line(f"{len(sent)} sent again.")


def _ask(question: Callable[[DeadLetters], Awaitable[T]], *, nats: str | None, directory: Any) -> T:
    url = nats or _admin_url(directory)

    async def answer() -> T:
        async with _open(url) as box:
            return await question(box)

    try:
        return asyncio.run(answer())
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
async def _open(url: str) -> AsyncIterator[DeadLetters]:
    waits = Waits(connect_s=CONNECT_S)
    async with open_connection(url, name="noetl-cli", waits=waits) as connection:
        yield JetStreamDeadLetters(connection)


def _admin_url(directory: Any) -> str:
    place = Home(root=settings.home(directory, environ=settings.environment()))
    current = state.find(place)
    if current is None or "nats" not in current.urls:
        raise StackError(
            f"No stack runs in {place.root}.",
            way_out="Start it with `noetl up`, or name a server with --nats.",
        )
    return current.urls["nats"]


def _summary(letter: DeadLetter) -> dict[str, Any]:
    return {
        "sequence": letter.sequence,
        "stream": letter.stream,
        "consumer": letter.consumer,
        "subject": letter.subject,
        "delivered": letter.delivered,
        "reason": letter.reason,
        "bytes": len(letter.data),
    }


def _readable(data: bytes) -> Any:
    """Decode JSON, else show the bytes as well as text can."""
    try:
        return codec.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return data.decode("utf-8", errors="backslashreplace")


def _pretty(data: bytes) -> str:
    value = _readable(data)
    if isinstance(value, str):
        return value
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
