"""`noetl dlq`: messages that their consumers gave up; look at them, send them again, drop them.

The planner is asked, and records who did what. With --nats the server of the messages is asked
itself, as its admin: nothing is recorded then.
"""

import getpass
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from noetl_cli import settings, terminal_output
from noetl_cli.commands.options import AsJson, Directory, Server
from noetl_cli.errors import CliError, ExitCode, StackError
from noetl_cli.planner import client
from noetl_cli.stack.home_folder import state
from noetl_cli.stack.home_folder.home import StackHome
from noetl_storage.process.lazy_import import LazyModule

if TYPE_CHECKING:
    from noetl_cli.planner import dead_letter_server
else:
    # A client of NATS, which --nats alone needs.
    dead_letter_server = LazyModule("noetl_cli.planner.dead_letter_server")

PAGE = 200
LETTERS_MAX = 10_000

app = typer.Typer(no_args_is_help=True, help="Look at dead letters, send them again, drop them.")

Nats = Annotated[
    str | None,
    typer.Option("--nats", help="Ask this server itself, as its admin; nothing is recorded."),
]
Sequence = Annotated[int, typer.Argument(metavar="SEQUENCE", min=1, help="The letter's number.")]
Sequences = Annotated[
    list[int] | None, typer.Argument(metavar="SEQUENCE...", help="The letters' numbers.")
]
Everything = Annotated[bool, typer.Option("--all", help="Every letter.")]
Who = Annotated[
    str | None, typer.Option("--who", help="Who does it, if nobody signs in (default: your login).")
]


@app.command("ls")
def list_letters(
    *,
    limit: Annotated[
        int, typer.Option(min=1, max=LETTERS_MAX, help="How many, oldest first.")
    ] = 50,
    after: Annotated[int, typer.Option(min=0, help="Only after this number.")] = 0,
    nats: Nats = None,
    directory: Directory = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """List dead letters, oldest first."""
    if nats is not None:
        dead_letters, has_more = dead_letter_server.list_letters(
            nats, after=after, letters_max=limit
        )
    else:
        dead_letters, has_more = _fetch_letters(
            _build_planner_address(server, directory), after=after, letters_max=limit
        )
    if as_json:
        terminal_output.print_json(dead_letters)
        return
    rows = [
        (
            str(dead_letter["sequence"]),
            (dead_letter["buried_at"] or "")[:19],
            dead_letter["stream"],
            dead_letter["consumer"],
            str(dead_letter["delivered"]),
            str(dead_letter["requeued"]),
            dead_letter["reason"],
        )
        for dead_letter in dead_letters
    ]
    columns = ("SEQUENCE", "BURIED", "STREAM", "CONSUMER", "DELIVERED", "REQUEUED", "REASON")
    terminal_output.print_rows(columns, rows, nothing="No dead letters.")
    if has_more and dead_letters:
        terminal_output.print_line(
            f"There are more: noetl dlq ls --after {dead_letters[-1]['sequence']}"
        )


@app.command("show")
def show_letter(
    sequence: Sequence,
    *,
    nats: Nats = None,
    directory: Directory = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Show one letter with its message."""
    if nats is not None:
        dead_letter = dead_letter_server.get_letter(nats, sequence)
    else:
        with client.open_client(_build_planner_address(server, directory)) as planner:
            dead_letter = planner.get(f"/api/dead-letters/{sequence}")
    if as_json:
        terminal_output.print_json(dead_letter)
        return
    message = dead_letter.pop("message")
    for name, value in dead_letter.items():
        terminal_output.print_line(f"{name:<10} {value}")
    terminal_output.print_line("")
    terminal_output.print_text(message if isinstance(message, str) else _indent_json(message))


@app.command("requeue")
def requeue_letters(
    sequences: Sequences = None,
    *,
    everything: Everything = False,
    who: Who = None,
    nats: Nats = None,
    directory: Directory = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Send letters again under their own subjects; a letter that was sent goes away."""
    _check_choice(sequences, everything=everything)
    if nats is not None:
        sent = dead_letter_server.requeue_letters(nats, sequences, letters_max=LETTERS_MAX)
    else:
        body = {"who": who or getpass.getuser()}
        sent = _act_on_letters(
            _build_planner_address(server, directory), sequences, "requeue", body
        )
    if as_json:
        terminal_output.print_json({"requeued": sent})
    else:
        terminal_output.print_line(f"{len(sent)} sent again.")


@app.command("drop")
def drop_letters(
    sequences: Sequences = None,
    *,
    reason: Annotated[str, typer.Option("--reason", help="Why; it is kept for good.")],
    everything: Everything = False,
    who: Who = None,
    directory: Directory = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Drop letters for good; who did it and why is recorded."""
    _check_choice(sequences, everything=everything)
    body = {"who": who or getpass.getuser(), "reason": reason}
    dropped = _act_on_letters(_build_planner_address(server, directory), sequences, "drop", body)
    if as_json:
        terminal_output.print_json({"dropped": dropped})
    else:
        terminal_output.print_line(f"{len(dropped)} dropped.")


@app.command("log")
def show_log(
    *,
    limit: Annotated[int, typer.Option(min=1, max=PAGE, help="How many, latest first.")] = 50,
    before: Annotated[int | None, typer.Option(min=1, help="Only before this act.")] = None,
    directory: Directory = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """List who sent letters again, and who dropped them and why."""
    with client.open_client(_build_planner_address(server, directory)) as planner:
        page = planner.get("/api/dead-letters/log", limit=limit, before=before)
    if as_json:
        terminal_output.print_json(page["acts"])
        return
    rows = [
        (
            str(act["act_id"]),
            act["acted_at"][:19],
            act["who"],
            act["action"],
            str(act["sequence"]),
            act["subject"],
            act["why"] or "",
        )
        for act in page["acts"]
    ]
    columns = ("ACT", "WHEN", "WHO", "ACTION", "SEQUENCE", "SUBJECT", "WHY")
    terminal_output.print_rows(columns, rows, nothing="Nobody did anything about a dead letter.")
    if page["next_before"] is not None:
        terminal_output.print_line(f"There are more: noetl dlq log --before {page['next_before']}")


def _fetch_letters(
    address: str | None, *, after: int, letters_max: int
) -> tuple[list[dict[str, Any]], bool]:
    dead_letters: list[dict[str, Any]] = []
    has_more = True
    with client.open_client(address) as planner:
        while has_more and len(dead_letters) < letters_max:
            most = min(PAGE, letters_max - len(dead_letters))
            page = planner.get("/api/dead-letters", after=after, limit=most)
            dead_letters += page["letters"]
            after, has_more = page["next_after"], page["has_more"]
    return dead_letters, has_more


def _act_on_letters(
    address: str | None, sequences: list[int] | None, action: str, body: dict[str, str]
) -> list[int]:
    chosen = sequences
    if chosen is None:
        dead_letters, has_more = _fetch_letters(address, after=0, letters_max=LETTERS_MAX)
        chosen = [dead_letter["sequence"] for dead_letter in dead_letters]
        if has_more:
            terminal_output.print_note(
                f"The first {LETTERS_MAX:,} are taken; there are more: call this again."
            )
    settled_sequences: list[int] = []
    with client.open_client(address) as planner:
        for sequence in chosen:
            planner.post(f"/api/dead-letters/{sequence}/{action}", body)
            settled_sequences.append(sequence)
    return settled_sequences


def _indent_json(message: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(message), indent=2).decode()


def _check_choice(sequences: list[int] | None, *, everything: bool) -> None:
    if bool(sequences) == everything:
        raise CliError(
            "Say which letters, or --all, but not both.",
            way_out="List them with: noetl dlq ls",
            exit_code=ExitCode.USAGE,
        )


def _build_planner_address(server: str | None, directory: Any) -> str | None:
    """Choose the planner: the one that was named, else that of the folder that was named."""
    if server is not None or directory is None:
        return server
    place = StackHome(root=settings.choose_home(directory, environ=settings.copy_environment()))
    current = state.find_state(place)
    if current is None or "api" not in current.urls:
        raise StackError(
            f"No stack runs in {place.root}.",
            way_out="Start it with `noetl up`, or name a planner with --server. "
            f"{settings.OTHER_HOME_OR_DIR}.",
        )
    return current.urls["api"]
