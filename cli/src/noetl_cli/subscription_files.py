"""Subscription documents of files, kept as triggers of the planner."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
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
    """Keep each subscription under its name; says which were kept before one is refused.

    Raises `CliError` that names the field which is refused.
    """
    kept: list[dict[str, Any]] = []
    for subscription in found:
        try:
            kept.append(_put(planner, subscription))
        except Refused as refusal:
            show(kept)
            left = len(found) - len(kept) - 1
            if left:
                render.note(f"{left} more behind it {'was' if left == 1 else 'were'} not sent.")
            raise _refused(subscription, refusal) from refusal
    return kept


def _refused(subscription: Subscription, refusal: Refused) -> CliError:
    field = _find_field(refusal)
    place = f", field {field}" if field else ""
    return CliError(
        f"Subscription {subscription.name!r}{place}: {refusal.message}. "
        "It is not kept; what this call registered before it stays.",
        way_out=refusal.way_out or "Correct the file and register it again.",
        exit_code=refusal.exit_code,
    )


def _find_field(refusal: Refused) -> str | None:
    """Name the field of the document that a planner's refusal is about, None if it is not known."""
    if refusal.status == HTTPStatus.NOT_FOUND:
        return "spec.dispatch"
    if refusal.code == "template_refused":
        is_filter = refusal.message.startswith("filter:")
        return "spec.filter" if is_filter else "spec.dispatch.input"
    return "spec.source.subject" if refusal.code == "subject_taken" else None


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
