"""Every verb of the command line by its name; a verb's module is loaded when it is asked for."""

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

import typer
from typer.core import TyperGroup

# In the order in which they are listed.
NAMES = (
    # The stack.
    *("up", "down", "doctor", "logs"),
    # Playbooks and executions.
    *("run", "status", "ls", "events", "trace", "lineage", "cancel", "pause", "resume", "rerun"),
    *("fork", "signal", "approve", "approvals", "lint", "plan", "pools", "register", "schema"),
    *("catalog", "credential", "schedule", "webhook", "trigger", "dlq", "payloads"),
    # The past.
    *("replay", "audit", "projection", "retention"),
)


class Verbs(Mapping[str, Any]):
    """The commands by name; each is loaded as it is looked up, and one is a fraction of all."""

    def __getitem__(self, name: str) -> Any:
        """Load a verb: its module's `app` if it has verbs of its own, else its function."""
        if name not in NAMES:
            raise KeyError(name)
        module = importlib.import_module(f"noetl_cli.commands.{name}")
        holder = typer.Typer()
        if hasattr(module, "app"):
            holder.add_typer(module.app, name=name)
        else:
            holder.command(name)(getattr(module, name))
        return typer.main.get_group(holder).commands[name]

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
