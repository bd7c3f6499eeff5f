"""Subscription documents of files, kept as triggers of the planner."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from noetl_cli import client, render
from noetl_cli.client import Client, Refused
from noetl_cli.failures import CliError, ExitCode
from noetl_playbook.mixed_text import MixedText
from noetl_playbook.subscriptions import Subscription


def list_subscriptions(texts: Mapping[Path, MixedText]) -> list[Subscription]:
    """List the subscriptions of files without errors; raises `CliError` for a name used twice."""
    file_by_name: dict[str, Path] = {}
    found: list[Subscription] = []
    for file, mixed in texts.items():
        for read in mixed.subscriptions:
            assert read.subscription is not None, "files with errors are refused before"
            name = read.subscription.name
            if name in file_by_name:
                raise CliError(
                    f"Subscription {name!r} stands in {file_by_name[name]} and in {file}; "
                    "nothing was done.",
                    way_out="Give each a metadata.name of its own.",
                    exit_code=ExitCode.USAGE,
                )
            file_by_name[name] = file
            found.append(read.subscription)
    return found


def put_all(planner: Client, found: Sequence[Subscription]) -> list[dict[str, Any]]:
    """Keep each subscription under its name; says which were kept before one is refused."""
    kept: list[dict[str, Any]] = []
    for subscription in found:
        try:
            kept.append(_put(planner, subscription))
        except Refused:
            show(kept)
            render.note(f"Subscription {subscription.name} was not kept; what stands before was.")
            raise
    return kept


def show(kept: Sequence[Mapping[str, Any]]) -> None:
    """Say what each subscription starts."""
    for one in kept:
        state = "" if one["enabled"] else " (paused)"
        render.line(
            f"subscription {one['name']}: messages of {one['publish_to']} "
            f"start {one['path']}{state}"
        )


def _put(planner: Client, subscription: Subscription) -> dict[str, Any]:
    body: dict[str, Any] = {
        "subject": subscription.source.subject,
        "path": subscription.dispatch.playbook,
        "version": subscription.dispatch.version,
        "inputs": subscription.dispatch.input,
        "body_bytes_max": subscription.body_bytes_max,
        "enabled": subscription.enabled,
    }
    if subscription.filter is not None:
        # Planners of before do not know it.
        body["filter"] = subscription.filter
    kept: dict[str, Any] = planner.put(f"/api/triggers/{client.escaped(subscription.name)}", body)
    return kept
