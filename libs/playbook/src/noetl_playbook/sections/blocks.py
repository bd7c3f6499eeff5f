"""The mappings inside a task's fields: which keys they have, and what these hold."""

from collections.abc import Callable, Mapping
from typing import Any

from noetl_playbook.model import coercion, http_headers, streams
from noetl_playbook.model.streams import StreamInvalid
from noetl_playbook.sections import auth_fields, script_files, transfer_ends
from noetl_playbook.sections.datasets import check_dataset_inputs
from noetl_playbook.sections.field_types import (
    ANYTHING,
    DURATION,
    DURATION_ABOVE_0,
    FIELD_TYPES,
    MAPPING,
    TEXT,
    TEXT_OR_LISTED,
    FieldType,
    build_whole_number_type,
    build_word_type,
    check_mapping_keys,
)
from noetl_playbook.source.document_reader import DocumentReader, describe_value
from noetl_playbook.source.problems import Path

Check = Callable[[DocumentReader, Any, Path], None]

CONTAINER_SPELLINGS = {
    "serviceAccount": "service_account",
    "serviceAccountName": "service_account",
    "backoffLimit": "backoff_limit",
    "restartPolicy": "restart_policy",
    "ttlSecondsAfterFinished": "ttl_seconds_after_finished",
}
CONTAINER_NESTED = ("runtime", "job")

_SCRIPT = {"uri": TEXT, "sha256": TEXT, "source": MAPPING}
_SOURCE = {
    "type": build_word_type("file", "http", "s3", "gcs", "inline"),
    "endpoint": TEXT,
    "method": FIELD_TYPES["http"]["method"],
    "headers": MAPPING,
    "timeout": DURATION,
    "auth": ANYTHING,
    "region": TEXT,
    "code": TEXT,
    "code_b64": TEXT,
}
_DEPS = {"packages": TEXT_OR_LISTED, "sys_path": TEXT_OR_LISTED, "venv_path": TEXT}
_POOL = {
    "name": TEXT,
    "min_size": build_whole_number_type(0),
    "max_size": build_whole_number_type(1),
    "timeout": DURATION_ABOVE_0,
    "max_waiting": build_whole_number_type(0),
}
_SESSION = {"master": TEXT, "remote": TEXT, "app_name": TEXT, "conf": MAPPING}
_RESOURCES = {"requests": MAPPING, "limits": MAPPING}
_CONTAINER = FIELD_TYPES["container"]


def check_block(reading: DocumentReader, kind: str, name: str, value: Any, path: Path) -> None:
    """Check a field that is a mapping, or a list of them; a template shows itself at run time."""
    check = _CHECKS.get((kind, name))
    if name == "script":
        check = _check_script
    if check is not None and isinstance(value, dict | list):
        check(reading, value, path)


def check_headers(reading: DocumentReader, value: Any, path: Path) -> None:
    """Report headers that no request may have."""
    for name, item in value.items() if isinstance(value, dict) else ():
        text, value_text = str(name), str(item)
        if item is None or coercion.is_template(text):
            continue
        problem = http_headers.find_header_problem(
            text, "" if coercion.is_template(value_text) else value_text
        )
        if problem is not None:
            reading.report_problem("E104", (*path, name), problem, hint="leave it out", of_key=True)


def _check_script(reading: DocumentReader, value: Any, path: Path) -> None:
    if not isinstance(value, dict):
        return
    check_mapping_keys(reading, _SCRIPT, value, path, about="script")
    script_files.read_script_file(reading, value, path)
    source = value.get("source")
    if not isinstance(source, dict):
        if value.get("uri") is None and not coercion.is_template(source):
            reading.report_problem("E104", path, "a script needs 'uri' or 'source'")
        return
    inner_path = (*path, "source")
    check_mapping_keys(reading, _SOURCE, source, inner_path, about="source")
    auth_fields.check_auth(reading, source.get("auth"), (*inner_path, "auth"))
    check_headers(reading, source.get("headers"), (*inner_path, "headers"))
    _check_address(reading, value.get("uri"), source, path)


def _check_address(reading: DocumentReader, uri: Any, source: dict[str, Any], path: Path) -> None:
    """Report a script whose source does not say where its text is."""
    has_code = source.get("code") is not None or source.get("code_b64") is not None
    kind = source.get("type", "inline" if has_code else None)
    match kind:
        case "inline":
            needed_text, is_said = "'source.code'", has_code
        case "file" | "s3" | "gcs":
            needed_text, is_said = "'uri'", uri is not None
        case _:
            needed_text = "'uri' or 'source.endpoint'"
            is_said = uri is not None or source.get("endpoint") is not None
    if not is_said and not coercion.is_template(kind):
        reading.report_problem("E104", path, f"the script needs {needed_text}")


def _check_libs(reading: DocumentReader, value: Any, path: Path) -> None:
    for alias, library in value.items() if isinstance(value, dict) else ():
        is_pair = isinstance(library, dict) and library.keys() == {"from", "import"}
        if not isinstance(library, str) and not is_pair:
            expected = "a module or {from: module, import: name}"
            reading.report_problem(
                "E104",
                (*path, alias),
                f"'{alias}' takes {expected}, found {describe_value(library)}",
            )


def _check_inputs(reading: DocumentReader, value: Any, path: Path) -> None:
    for name, source in value.items() if isinstance(value, dict) else ():
        if isinstance(source, dict) and "query" in source and "rows" not in source:
            auth_fields.check_auth(reading, source.get("auth"), (*path, name, "auth"))


def _check_runtime(reading: DocumentReader, value: Any, path: Path) -> None:
    if isinstance(value, dict):
        about = f"'{path[-1]}'"
        check_mapping_keys(
            reading, _CONTAINER, value, path, about=about, spellings=CONTAINER_SPELLINGS
        )
        for name, item in value.items():
            check_block(
                reading, "container", CONTAINER_SPELLINGS.get(name, str(name)), item, (*path, name)
            )


def _check_env(reading: DocumentReader, value: Any, path: Path) -> None:
    fields = {"name": TEXT, "value": ANYTHING}
    _check_items(reading, value, path, fields, needed_key="name", about="an entry of env")


def _check_files(reading: DocumentReader, value: Any, path: Path) -> None:
    fields = {"path": TEXT, "content": ANYTHING, "script": MAPPING}
    _check_items(reading, value, path, fields, needed_key="path", about="an entry of files")
    for index, item in enumerate(value if isinstance(value, list) else ()):
        if isinstance(item, dict) and len(item.keys() & {"content", "script"}) != 1:
            reading.report_problem(
                "E104", (*path, index), "a file takes one of 'content' or 'script'"
            )


def _check_items(
    reading: DocumentReader,
    value: Any,
    path: Path,
    fields: Mapping[str, FieldType],
    *,
    needed_key: str,
    about: str,
) -> None:
    """Check the mappings of a list."""
    for index, item in enumerate(value if isinstance(value, list) else ()):
        inner_path = (*path, index)
        if isinstance(item, dict):
            check_mapping_keys(reading, fields, item, inner_path, about=about)
            if item.get(needed_key) is None:
                reading.report_problem("E104", inner_path, f"{about} needs '{needed_key}'")
        elif not coercion.is_template(item):
            reading.report_wrong_type(inner_path, f"a mapping with '{needed_key}'", item)


def _make_keys_check(fields: Mapping[str, FieldType], about: str) -> Check:
    def check_mapping(reading: DocumentReader, value: Any, path: Path) -> None:
        if isinstance(value, dict):
            check_mapping_keys(reading, fields, value, path, about=about)

    return check_mapping


def _check_sources(reading: DocumentReader, value: Any, path: Path) -> None:
    _check_inputs(reading, value, path)
    check_dataset_inputs(reading, value, path)


def _check_follow(reading: DocumentReader, value: Any, path: Path) -> None:
    try:
        streams.check_written_out(value)
    except StreamInvalid as problem:
        reading.report_problem("E104", path, str(problem))


_CHECKS: dict[tuple[str, str], Check] = {
    ("http", "headers"): check_headers,
    ("python", "deps"): _make_keys_check(_DEPS, "deps"),
    ("python", "libs"): _check_libs,
    ("postgres", "pool"): _make_keys_check(_POOL, "pool"),
    ("duckdb", "inputs"): _check_sources,
    ("spark", "inputs"): _check_sources,
    ("spark", "follow"): _check_follow,
    ("spark", "session"): _make_keys_check(_SESSION, "session"),
    ("container", "resources"): _make_keys_check(_RESOURCES, "resources"),
    ("container", "env"): _check_env,
    ("container", "files"): _check_files,
    **{("container", name): _check_runtime for name in CONTAINER_NESTED},
    ("transfer", "source"): transfer_ends.check_transfer_source,
    ("transfer", "target"): transfer_ends.check_transfer_target,
}
