"""Scripts that lie beside a playbook: read with it, and carried in its canonical form."""

import re
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from msgspec import structs

from noetl_contracts import codec
from noetl_playbook.model import coercion
from noetl_playbook.model.playbook import Playbook, Task
from noetl_playbook.model.tools import NESTED_FIELDS
from noetl_playbook.source.document_reader import DocumentReader, ScriptReader
from noetl_playbook.source.problems import Path

SCRIPT_BYTES_MAX = 256 * 1024
# A command carries the scripts of its step.
SCRIPTS_BYTES_MAX = 512 * 1024

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


class ScriptFault(Exception):  # noqa: N818 - it says what a file is
    """A file cannot be a script of a playbook."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def find_script_file(script: Any) -> str | None:
    """Name the file that a script means beside its playbook; None for one that lies elsewhere."""
    if not isinstance(script, Mapping):
        return None
    uri, source = script.get("uri"), script.get("source")
    if not isinstance(uri, str) or not uri or coercion.is_template(uri) or source:
        return None
    return None if _SCHEME.match(uri) else uri


def read_script_file(reading: DocumentReader, script: dict[str, Any], path: Path) -> None:
    """Read the file of a script, where the reader of the document has files; report faults."""
    name, scripts = find_script_file(script), reading.scripts
    if name is None or scripts is None or name in scripts.script_by_name:
        return
    inner_path = (*path, "uri")
    try:
        text = scripts.read_script(name)
    except ScriptFault as fault:
        reading.report_problem("E202", inner_path, str(fault), hint=fault.hint)
        return
    data = text.encode()
    sha256 = script.get("sha256")
    if sha256 is not None and not _has_digest(sha256, data):
        reading.report_problem(
            "E104",
            (*path, "sha256"),
            f"script {name!r:.200} is another text: its sha256 is {_digest_script(data)}",
        )
    size = sum(len(known_names.encode()) for known_names in scripts.script_by_name.values()) + len(
        data
    )
    if len(data) > SCRIPT_BYTES_MAX:
        text = f"script {name!r:.200} has {len(data)} bytes, and at most {SCRIPT_BYTES_MAX}"
        reading.report_problem(
            "E605", inner_path, f"{text} are carried with a playbook", hint=_ELSEWHERE
        )
        return
    if size > SCRIPTS_BYTES_MAX:
        text = f"the scripts of the playbook have more than {SCRIPTS_BYTES_MAX} bytes"
        reading.report_problem("E605", inner_path, f"{text} with {name!r:.200}", hint=_ELSEWHERE)
        return
    scripts.script_by_name[name] = text


def embed_scripts(playbook: Playbook, scripts: ScriptReader | None) -> Playbook:
    """Put the texts of scripts in the place of the files that they were read from."""
    if scripts is None or not scripts.script_by_name:
        return playbook
    script_by_name = scripts.script_by_name

    def embed_task(task: Task) -> Task:
        return structs.replace(task, fields=_embed_fields(task.fields, script_by_name))

    return structs.replace(
        playbook,
        workflow=tuple(
            structs.replace(step, tool=tuple(embed_task(task) for task in step.tool))
            for step in playbook.workflow
        ),
        workbook=tuple(
            structs.replace(entry, tool=embed_task(entry.tool)) for entry in playbook.workbook
        ),
    )


def _embed_fields(fields: dict[str, Any], script_by_name: Mapping[str, str]) -> dict[str, Any]:
    embedded = dict(fields)
    for nested in NESTED_FIELDS:
        if isinstance(embedded.get(nested), dict):
            embedded[nested] = _embed_fields(embedded[nested], script_by_name)
    name = find_script_file(embedded.get("script"))
    if name is not None and name in script_by_name:
        data = script_by_name[name].encode()
        # A text would be rendered as a template on its way to the tool.
        embedded["script"] = {
            "uri": name,
            "sha256": _digest_script(data),
            "source": {"type": "inline", "code_b64": b64encode(data).decode()},
        }
    return embedded


def _digest_script(data: bytes) -> str:
    return codec.digest_hex(data).removeprefix("sha256:")


def _has_digest(expected: Any, data: bytes) -> bool:
    digest = str(expected).lower().removeprefix("sha256:")
    return coercion.is_template(str(expected)) or digest == _digest_script(data)


_ELSEWHERE = "keep it in a bucket or at a URL, and name that with its sha256"
