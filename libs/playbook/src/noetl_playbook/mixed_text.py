"""Texts that hold playbooks and subscriptions, each document read as what it is."""

from msgspec import Struct

from noetl_playbook import document, several, subscriptions
from noetl_playbook.document import LINE_BREAK, UnreadableError
from noetl_playbook.parse import Parsed, parse_all, parse_document, unreadable
from noetl_playbook.problems import Level, Problem
from noetl_playbook.script_reader import ReadScript
from noetl_playbook.subscriptions import ReadSubscription


class MixedText(Struct, frozen=True, kw_only=True):
    """The documents of a text; in `playbook_text` the lines of subscriptions are empty."""

    playbooks: tuple[Parsed, ...]
    subscriptions: tuple[ReadSubscription, ...]
    playbook_text: str

    @property
    def script_by_name(self) -> dict[str, str]:
        """Return the files beside the text whose texts its playbooks carry."""
        return {
            name: each.script_by_name[name]
            for each in self.playbooks
            for name in each.script_by_name
        }

    @property
    def problems(self) -> list[Problem]:
        """List the problems of all documents, in the order of the text."""
        documents: list[Parsed | ReadSubscription] = [*self.playbooks, *self.subscriptions]
        documents.sort(key=lambda each: each.begins)
        return [problem for each in documents for problem in each.problems]


def read_text(
    text: str, *, level: Level = Level.TOLERANT, read_script: ReadScript | None = None
) -> MixedText:
    """Read every document of a text, with the scripts beside it; it never raises."""
    try:
        found = document.read_all(text)
    except UnreadableError:
        return MixedText(
            playbooks=parse_all(text, level=level), subscriptions=(), playbook_text=text
        )
    are_subscriptions = [subscriptions.is_subscription(each) for each in found]
    parts = several.cut(text, [each.begins for each in found])
    return MixedText(
        playbooks=tuple(
            parse_document(each, level=level, read_script=read_script)
            for each, is_one in zip(found, are_subscriptions, strict=True)
            if not is_one
        ),
        subscriptions=tuple(
            subscriptions.read_subscription(each, level=level)
            for each, is_one in zip(found, are_subscriptions, strict=True)
            if is_one
        ),
        playbook_text="".join(
            _emptied(part) if is_one else part
            for part, is_one in zip(parts, are_subscriptions, strict=True)
        ),
    )


def read_bytes(
    data: bytes, *, level: Level = Level.TOLERANT, read_script: ReadScript | None = None
) -> MixedText:
    """Read every document of a file's bytes, which must be UTF-8."""
    try:
        text = document.decoded(data)
    except UnreadableError as error:
        return MixedText(
            playbooks=(unreadable(error, level=level),), subscriptions=(), playbook_text=""
        )
    return read_text(text, level=level, read_script=read_script)


def _emptied(part: str) -> str:
    """Keep the line breaks of a part alone, so that what follows stays on its lines."""
    return "".join(LINE_BREAK.findall(part))
