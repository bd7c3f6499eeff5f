"""Every verb of the command line by its name; a verb's module is loaded when it is asked for."""

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

import typer
from typer._click import Context, HelpFormatter
from typer._click.shell_completion import CompletionItem
from typer.core import TyperGroup

from noetl_cli.errors import CliError, ExitCode

# The verbs as the help lists them, with the first sentence of their own help: it loads none.
GROUPS: dict[str, dict[str, str]] = {
    "Run playbooks": {
        "run": "Run a playbook and watch it; Ctrl-C leaves it running, twice cancels it.",
        "backfill": "Run a playbook for ranges of its sources; the same command goes on where it"
        " stopped.",
        "state": "Show how far playbooks have read their sources, and set it.",
        "checks": "Show what the checks of a playbook's datasets have found, run after run.",
        "lint": "Check playbooks.",
        "plan": "Show steps, arcs, stages and needs of a playbook; nothing is executed.",
        "register": "Register playbooks, each as the next version of its path, and keep"
        " subscriptions.",
        "catalog": "List and show registered playbooks.",
        "schema": "Print a schema, list their names, or write all of them into a folder.",
    },
    "Look at executions": {
        "ls": "List executions.",
        "status": "Show an execution's status, what its steps did, its loops and its stages.",
        "result": "Show the result of a step, or write it into a file.",
        "explain": "Show how Spark planned a step whose task has `explain: true`.",
        "spark": "Print Spark's own log of a step whose task has `event_log: true`.",
        "items": "Show what became of each item of a loop, and why items failed.",
        "events": "Print events in order, one a line.",
        "diff": "Compare two runs: inputs, steps and results; exit code 0 alike, 1 different,"
        " 2 trouble.",
        "trace": "Show the runs that led to the latest run of a step, the nearest first.",
        "lineage": "Show what steps read and wrote, or export it as OpenLineage events.",
    },
    "Steer executions": {
        "cancel": "Ask to stop an execution; what has ended stays as it is.",
        "pause": "Dispatch nothing more until it is resumed; what runs may finish.",
        "resume": "Let a held execution go on exactly where it was.",
        "rerun": "Begin a new execution at a step of an earlier one.",
        "fork": "Begin a new execution with the state that an earlier one had at a position.",
        "signal": "Send a message; it is kept until a task waits for the key.",
        "approvals": "List the approvals that are asked for, the oldest first.",
        "approve": "Decide an approval; the first decision counts.",
    },
    "Start by time and message": {
        "schedule": "Keep, list, pause and run schedules.",
        "webhook": "Keep, list and remove webhooks.",
        "trigger": "Keep, list, pause and remove triggers.",
        "notify": "Start a playbook when executions fail, recover, are late or wait.",
    },
    "Sign in": {
        "login": "Sign in at a server, with a code in any browser; tokens are kept and renewed.",
        "logout": "Forget the sign-in or the key of a server, and end it at the identity provider.",
        "whoami": "Show who a server takes you for, and what you may do there.",
        "context": "Keep, choose, list and remove named servers.",
    },
    "Run the services": {
        "up": "Start PostgreSQL, NATS, S3 and the five services; attach when they run already.",
        "down": "Drain and stop the services, then the servers, and wait until all are gone.",
        "open": "Open the console in a browser, signed in.",
        "doctor": "Check versions, durability settings, disk, ports, Java and every service.",
        "logs": "Print what tasks wrote; without an execution, the logs of the stack.",
        "pools": "List the pools, how they are served, and what waits in their lanes.",
        "credential": "Keep, test, list and end credentials.",
        "worker": "Make the broker's users of workers.",
        "tenant": "Bound and suspend tenants, and make the database's readers of one.",
        "completion": "Print the script that completes words in a shell.",
    },
    "Say who may do what": {
        "role": "List, give and take away roles.",
        "key": "Make, list and revoke API keys.",
    },
    "Keep and prove the past": {
        "replay": "Look at the past, compare it, and prove it.",
        "evidence": "Take a run's evidence to where no server is.",
        "audit": "Show who administered what, and check that histories are as they were written.",
        "projection": "Rebuild what projectors derive from the ledger.",
        "retention": "Say how long histories stay, and let them leave.",
        "payloads": "Collect payloads, and seal them with another key.",
        "dlq": "Look at dead letters, send them again, drop them.",
    },
}
# In which folder of `commands` the modules of the verbs stand.
FOLDERS: dict[str, tuple[str, ...]] = {
    "executions": (
        *(
            "run",
            "backfill",
            "plan",
            "ls",
            "status",
            "result",
            "explain",
            "spark",
            "items",
            "events",
            "diff",
            "trace",
            "lineage",
        ),
        *("cancel", "pause", "resume", "rerun", "fork"),
    ),
    "history": ("replay", "evidence", "audit", "projection", "retention", "payloads", "dlq"),
    "identity": ("login", "logout", "whoami", "context", "role", "key"),
    "messages": ("signal", "approvals", "approve", "schedule", "webhook", "trigger", "notify"),
    "playbooks": ("lint", "register", "catalog", "schema", "state", "checks"),
    "services": (
        *(
            "up",
            "down",
            "open",
            "doctor",
            "logs",
            "pools",
            "credential",
            "worker",
            "tenant",
            "completion",
        ),
    ),
}
FOLDER_BY_NAME = {name: folder for folder, names in FOLDERS.items() for name in names}
SUMMARIES = {name: text for group in GROUPS.values() for name, text in group.items()}
NAMES = tuple(SUMMARIES)


class Verbs(Mapping[str, Any]):
    """The commands by name; each is loaded as it is looked up, and one is a fraction of all."""

    def __getitem__(self, name: str) -> Any:
        """Load a verb: its module's `app` if it has verbs of its own, else its function."""
        if name not in SUMMARIES:
            raise KeyError(name)
        module = importlib.import_module(f"noetl_cli.commands.{FOLDER_BY_NAME[name]}.{name}")
        holder = typer.Typer()
        if hasattr(module, "app"):
            holder.add_typer(module.app, name=name)
        else:
            holder.command(name)(getattr(module, name))
        command = typer.main.get_group(holder).commands[name]
        _use_plain_help(command)
        return command

    def __iter__(self) -> Iterator[str]:
        """Name every verb."""
        return iter(NAMES)

    def __len__(self) -> int:
        """Count them."""
        return len(NAMES)


class VerbGroup(TyperGroup):
    """The command that all verbs are below."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**{**attributes, "commands": Verbs()})

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        """List the verbs by groups, without loading any."""
        del ctx
        width = max(len(name) for name in NAMES)
        for title, summaries in GROUPS.items():
            with formatter.section(title):
                # One width for all groups: the texts stand below each other.
                formatter.write_dl([(name.ljust(width), text) for name, text in summaries.items()])

    def shell_complete(self, ctx: Context, incomplete: str) -> list[CompletionItem]:
        """Complete the name of a verb without loading any."""
        names = [name for name in NAMES if name.startswith(incomplete)]
        options = super().shell_complete(ctx, incomplete) if incomplete.startswith("-") else []
        return [CompletionItem(name, help=SUMMARIES[name]) for name in names] + options


def _use_plain_help(command: Any) -> None:
    """Print help and usage errors as text: rich and its Markdown take longer than most verbs."""
    command.rich_markup_mode = None
    for below in getattr(command, "commands", {}).values():
        _use_plain_help(below)


def check_arguments_text(words: list[str]) -> None:
    """Refuse words that are not text; raises `CliError`."""
    for word in words:
        if any("\ud800" <= character <= "\udfff" for character in word):
            escaped_word = word.encode(errors="backslashreplace").decode()[:80]
            raise CliError(
                f"{escaped_word!r} is not UTF-8.",
                way_out="Check the terminal's encoding.",
                exit_code=ExitCode.USAGE,
            )
