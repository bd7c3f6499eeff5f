"""Texts that hold playbooks and subscriptions, each document read as what it is."""

from typing import Any

from msgspec import Struct

from noetl_contracts import spelling
from noetl_playbook.parse import subscriptions
from noetl_playbook.parse.playbook import (
    ParsedPlaybook,
    parse_document,
    parse_playbooks,
    report_unreadable,
)
from noetl_playbook.parse.subscriptions import ReadSubscription
from noetl_playbook.source import yaml_document
from noetl_playbook.source.document_reader import ReadScript
from noetl_playbook.source.problems import Level, Problem
from noetl_playbook.source.yaml_document import LINE_BREAK, UnreadableError

_KINDS = ("Playbook", subscriptions.KIND)
# Inputs may be called `kind`, `workload` or `metadata`.
_TELLING_KEYS = ("apiVersion", "workflow", "workbook", "keychain", "executor")


class MixedText(Struct, frozen=True, kw_only=True):
    """The documents of a text; in `playbook_text` the lines of subscriptions are empty.

    `is_foreign` tells that no document looks like one of NoETL's: inputs and other data do not.
    """

    playbooks: tuple[ParsedPlaybook, ...]
    subscriptions: tuple[ReadSubscription, ...]
    playbook_text: str
    is_foreign: bool = False

    @property
    def script_by_name(self) -> dict[str, str]:
        """Return the files beside the text whose texts its playbooks carry."""
        return {
            name: playbook.script_by_name[name]
            for playbook in self.playbooks
            for name in playbook.script_by_name
        }

    @property
    def all_problems(self) -> list[Problem]:
        """List the problems of all documents, in the order of the text."""
        documents: list[ParsedPlaybook | ReadSubscription] = [*self.playbooks, *self.subscriptions]
        documents.sort(key=lambda each: each.begins)
        return [problem for document in documents for problem in document.problems]


def read_mixed_text(
    text: str, *, level: Level = Level.TOLERANT, read_script: ReadScript | None = None
) -> MixedText:
    """Read every document of a text, with the scripts beside it; it never raises."""
    try:
        documents = yaml_document.read_documents(text)
    except UnreadableError:
        return MixedText(
            playbooks=parse_playbooks(text, level=level), subscriptions=(), playbook_text=text
        )
    are_subscriptions = [subscriptions.is_subscription(document) for document in documents]
    parts = yaml_document.split_documents(text, [document.begins for document in documents])
    return MixedText(
        playbooks=tuple(
            parse_document(item, level=level, read_script=read_script)
            for item, is_one in zip(documents, are_subscriptions, strict=True)
            if not is_one
        ),
        subscriptions=tuple(
            subscriptions.read_subscription(item, level=level)
            for item, is_one in zip(documents, are_subscriptions, strict=True)
            if is_one
        ),
        playbook_text="".join(
            _blank_lines(part) if is_one else part
            for part, is_one in zip(parts, are_subscriptions, strict=True)
        ),
        is_foreign=bool(documents) and all(_is_foreign(document.value) for document in documents),
    )


def _is_foreign(value: Any) -> bool:
    """Tell whether a document is a mapping without any key of a playbook, nor a misspelt one."""
    if not isinstance(value, dict) or value.get("kind") in _KINDS:
        return False
    return not any(
        key == root or spelling.is_spelling_slip(str(key), root)
        for key in value
        for root in _TELLING_KEYS
    )


def read_mixed_bytes(
    data: bytes, *, level: Level = Level.TOLERANT, read_script: ReadScript | None = None
) -> MixedText:
    """Read every document of a file's bytes, which must be UTF-8."""
    try:
        text = yaml_document.decode_text(data)
    except UnreadableError as error:
        return MixedText(
            playbooks=(report_unreadable(error, level=level),), subscriptions=(), playbook_text=""
        )
    return read_mixed_text(text, level=level, read_script=read_script)


def _blank_lines(part: str) -> str:
    """Keep the line breaks of a part alone, so that what follows stays on its lines."""
    return "".join(LINE_BREAK.findall(part))
