"""Text to playbook: never raises, always says everything that is wrong in one pass."""

from typing import Any

import msgspec

from noetl_contracts.written_names import find_name_problem, find_path_problem
from noetl_playbook.compat import dialect, outcome
from noetl_playbook.lint.validation import validate_playbook
from noetl_playbook.model import tools
from noetl_playbook.model.playbook import (
    Accumulate,
    AdmitRule,
    Cursor,
    CursorOptions,
    Executor,
    Failure,
    FanoutOpts,
    Frame,
    Metadata,
    Playbook,
    Reduce,
    Selection,
    WorkbookEntry,
)
from noetl_playbook.parse import declared_inputs, inputs, keychain_entries
from noetl_playbook.parse.steps import read_workflow
from noetl_playbook.parse.tasks import read_task
from noetl_playbook.sections import loop_bounds, loops, policies, script_files
from noetl_playbook.sections.limits import check_pool_name
from noetl_playbook.sections.loop_bounds import check_default_mode
from noetl_playbook.source import yaml_document
from noetl_playbook.source.document_reader import (
    DocumentReader,
    Reader,
    ReadScript,
    ScriptReader,
    describe_value,
)
from noetl_playbook.source.problems import Level, Path, Problem, write_fragment
from noetl_playbook.source.yaml_document import UnreadableError, YamlDocument

VERSIONS = ("noetl.io/v2", "noetl.io/v10")
_OLDER_VERSION = "noetl.io/v1"
_ROOT_KEYS = frozenset(
    {
        *("apiVersion", "kind", "metadata", "executor", "workload", "keychain", "workbook"),
        *("workflow", "vars", "spec", "inputs"),
    }
)


class ParsedPlaybook(msgspec.Struct, frozen=True, kw_only=True):
    """The canonical playbook, absent when a problem is an error, and every problem in order."""

    playbook: Playbook | None
    problems: tuple[Problem, ...]
    # The line at which its document begins in a text that holds several.
    begins: int = 1
    # The files beside it whose texts are in it now.
    script_by_name: dict[str, str] = {}


def parse_playbook(
    text: str, *, level: Level = Level.TOLERANT, read_script: ReadScript | None = None
) -> ParsedPlaybook:
    """Read the one playbook of a text; `read_script` gives the files that lie beside it."""
    try:
        only_document = yaml_document.get_only_document(yaml_document.read_documents(text))
    except UnreadableError as error:
        return report_unreadable(error, level=level)
    return parse_document(only_document, level=level, read_script=read_script)


def parse_playbooks(
    text: str, *, level: Level = Level.TOLERANT, read_script: ReadScript | None = None
) -> tuple[ParsedPlaybook, ...]:
    """Read every playbook of a text that may hold several documents."""
    try:
        documents = yaml_document.read_documents(text)
    except UnreadableError as error:
        return (report_unreadable(error, level=level),)
    return tuple(
        parse_document(document, level=level, read_script=read_script) for document in documents
    )


def report_unreadable(error: UnreadableError, *, level: Level) -> ParsedPlaybook:
    """Say why a text cannot be read."""
    empty = YamlDocument(
        value=None,
        values={error.text_problem.path: error.text_problem.place},
        keys={},
        text_problems=(error.text_problem,),
    )
    reading = DocumentReader(empty, level=level, readers={})
    _report_text_problems(reading)
    return ParsedPlaybook(playbook=None, problems=tuple(reading.problems))


def parse_document(
    yaml_document: YamlDocument, *, level: Level, read_script: ReadScript | None = None
) -> ParsedPlaybook:
    """Read the playbook of one document."""
    reading = DocumentReader(yaml_document, level=level, readers=_READERS)
    reading.scripts = None if read_script is None else ScriptReader(read_script)
    _report_text_problems(reading)
    playbook = _read_root(reading, yaml_document.value)
    trees = validate_playbook(reading, playbook)
    mode = dialect.choose_undefined_mode(
        reading, playbook.executor.spec.undefined if playbook else None
    )
    found_problems = dialect.soften_problems(reading, mode)
    problems = sorted(found_problems, key=lambda each: (each.line, each.column, each.code))
    distinct = tuple(dict.fromkeys(problems))
    if any(problem.is_error for problem in distinct):
        playbook = None
    if playbook is not None:
        playbook = dialect.write_undefined_mode(playbook, mode)
        playbook = script_files.embed_scripts(playbook, reading.scripts)
        playbook = inputs.record_input_paths(playbook, trees)
    return ParsedPlaybook(
        playbook=playbook,
        problems=distinct,
        begins=yaml_document.begins,
        script_by_name={} if reading.scripts is None else reading.scripts.script_by_name,
    )


def _report_text_problems(reading: DocumentReader) -> None:
    for text_problem in reading.document.text_problems:
        reading.report_problem(
            text_problem.code,
            text_problem.path,
            text_problem.message,
            hint=text_problem.hint,
            place=text_problem.place,
        )


def _read_root(reading: DocumentReader, value: Any) -> Playbook | None:
    if not isinstance(value, dict):
        reading.report_problem(
            "E101", (), f"the document is {describe_value(value)}, not a mapping"
        )
        return None
    _check_identity(reading, value)
    _check_root_keys(reading, value)
    metadata = _read_metadata(reading, value.get("metadata"), ("metadata",))
    executor = _read_executor(reading, value.get("executor"), ("executor",))
    workload = _read_workload(reading, value)
    input_declarations = declared_inputs.read_declared_inputs(
        reading, value.get("inputs"), workload
    )
    variables = reading.read_mapping(value.get("vars"), ("vars",)) or {}
    reading.add_templates(variables, ("vars",))
    keychain = _read_entries(reading, value, "keychain", keychain_entries.read_keychain_entry)
    workbook = _read_entries(reading, value, "workbook", _read_workbook_entry)
    steps = outcome.rename_outcome(reading, value.get("workflow"), ("workflow",))
    workflow = read_workflow(reading, steps, ("workflow",), loop_mode=executor.spec.loop_mode)
    return Playbook(
        # Without a name the document is refused; the rest of it is judged all the same.
        metadata=metadata or Metadata(name="unnamed", path="unnamed"),
        executor=executor,
        workload=workload,
        vars=variables,
        declared_inputs=input_declarations,
        keychain=keychain,
        workbook=workbook,
        workflow=tuple(workflow),
    )


def _check_identity(reading: DocumentReader, value: dict[str, Any]) -> None:
    version = value.get("apiVersion")
    if version is None or version == _OLDER_VERSION:
        reading.report_problem(
            "W901",
            ("apiVersion",),
            f"apiVersion should be {VERSIONS[0]}",
            replacement=f"apiVersion: {VERSIONS[0]}",
        )
    elif version not in VERSIONS:
        reading.report_problem(
            "E102",
            ("apiVersion",),
            f"unknown apiVersion {describe_value(version)}",
            hint=f"write {VERSIONS[0]}",
        )
    if value.get("kind") != "Playbook":
        kind = value.get("kind")
        hint = "noetl register FILE keeps it" if kind == "Subscription" else "write kind: Playbook"
        reading.report_problem("E102", ("kind",), f"kind is {describe_value(kind)}", hint=hint)


def _check_root_keys(reading: DocumentReader, value: dict[str, Any]) -> None:
    if "vars" in value:
        reading.report_problem(
            "W901",
            ("vars",),
            "'vars' is an older form",
            of_key=True,
            hint="begin with a step that sets them",
            replacement=_write_first_step(value),
        )
    if "spec" in value:
        reading.report_problem(
            "W901",
            ("spec",),
            "a root 'spec' is an older form",
            of_key=True,
            replacement=write_fragment("workload", {"spec": value["spec"]}),
        )
    for key in value:
        if key not in _ROOT_KEYS:
            reading.report_unknown((key,), _ROOT_KEYS)


def _write_first_step(value: dict[str, Any]) -> str:
    """Write the step that sets what root `vars` set, before the step that is the entry now."""
    variables = value["vars"] if isinstance(value["vars"], dict) else {}
    steps = value.get("workflow")
    step_names = [
        step.get("step", step.get("name")) for step in steps or () if isinstance(step, dict)
    ]
    executor = value.get("executor")
    spec = executor.get("spec") if isinstance(executor, dict) else None
    entry = spec.get("entry_step") if isinstance(spec, dict) else None
    entry = entry or ("start" if "start" in step_names else next(iter(step_names), "start"))
    block = {f"ctx.{name}": item for name, item in variables.items()}
    step = {"step": "variables", "tool": {"kind": "noop"}, "set": block}
    following = {"next": {"arcs": [{"step": entry}]}}
    return write_fragment("workflow", [{**step, **following}])


def _read_metadata(reading: DocumentReader, value: Any, path: Path) -> Metadata | None:
    raw = value if isinstance(value, dict) else {}
    if (fault := _find_name_fault(value)) is not None:
        message, hint = fault
        reading.report_problem("E102", (*path, "name"), message, hint=hint)
        return None
    fields = {key: item for key, item in raw.items() if key in Metadata.__struct_fields__}
    metadata_fields = reading.read_fields(Metadata, fields, path)
    metadata_fields["path"] = str(metadata_fields.get("path", metadata_fields["name"])).strip("/")
    metadata_fields["extra"] = {key: item for key, item in raw.items() if key not in fields}
    for key, find_problem in _NAME_RULES.items():
        if (problem := find_problem(str(metadata_fields[key]))) is not None:
            reading.report_problem("E102", (*path, key if key in raw else "name"), problem)
            return None
    metadata: Metadata | None = reading.build_struct(Metadata, metadata_fields, path)
    return metadata


_NAME_RULES = {"name": find_name_problem, "path": find_path_problem}


def _find_name_fault(metadata: Any) -> tuple[str, str | None] | None:
    """Say why a playbook has no name, and what to write."""
    if metadata is not None and not isinstance(metadata, dict):
        return f"metadata is {describe_value(metadata)}, not a mapping", "write metadata: {name: …}"
    name = metadata.get("name") if metadata is not None else None
    if name is None:
        return "metadata.name is required", None
    if isinstance(name, dict | list):
        return f"metadata.name is text, found {describe_value(name)}", "write metadata: {name: …}"
    return None if str(name).strip("/ ") else ("metadata.name is empty", None)


def _read_executor(reading: DocumentReader, value: Any, path: Path) -> Executor:
    if value is None:
        return Executor()
    executor: Executor | None = reading.read_struct(Executor, value, path)
    if executor is not None:
        check_pool_name(reading, executor.spec.pool, (*path, "spec"))
        check_default_mode(reading, executor.spec.loop_mode, (*path, "spec", "loop_mode"))
    for index, kind in enumerate(executor.requires.tools if executor is not None else ()):
        if kind not in tools.KINDS:
            reading.report_problem(
                "E401",
                (*path, "requires", "tools", index),
                f"unknown tool kind '{kind}'",
                hint=reading.suggest_word(kind, tools.KINDS),
            )
    return executor or Executor()


def _read_workload(reading: DocumentReader, value: dict[str, Any]) -> dict[str, Any]:
    workload = reading.read_mapping(value.get("workload"), ("workload",)) or {}
    for name in workload:
        if (problem := find_name_problem(str(name))) is not None:
            reading.report_problem("E201", ("workload", name), problem, of_key=True)
    reading.add_templates(workload, ("workload",))
    spec = value.get("spec")
    if isinstance(spec, dict) and "spec" not in workload:
        reading.add_templates(spec, ("spec",))
        return {**workload, "spec": spec}
    return workload


def _read_entries(reading: DocumentReader, value: dict[str, Any], key: str, reader: Reader) -> Any:
    items = reading.read_list(value.get(key), (key,))
    optional_entries = (reader(reading, item, (key, i)) for i, item in enumerate(items))
    entries = tuple(entry for entry in optional_entries if entry is not None)
    names: set[str] = set()
    for index, entry in enumerate(entries):
        if entry.name in names:
            reading.report_problem("E201", (key, index, "name"), f"'{entry.name}' is named twice")
        if (problem := find_name_problem(entry.name)) is not None:
            reading.report_problem("E201", (key, index, "name"), problem)
        names.add(entry.name)
    return entries


def _read_workbook_entry(reading: DocumentReader, value: Any, path: Path) -> WorkbookEntry | None:
    raw = reading.read_mapping(value, path)
    if raw is None:
        return None
    fields = reading.read_fields(WorkbookEntry, raw, path, other=("tool",))
    name = fields.get("name", "entry")
    tool = read_task(reading, raw.get("tool"), (*path, "tool"), step_name=name, default_name=name)
    if tool is None:
        return None
    entry: WorkbookEntry | None = reading.build_struct(
        WorkbookEntry, {**fields, "tool": tool}, path
    )
    return entry


_READERS: dict[type, Reader] = {
    Accumulate: policies.read_accumulate,
    AdmitRule: policies.read_admit_rule,
    Cursor: loops.read_cursor,
    CursorOptions: loop_bounds.read_cursor_options,
    Failure: loop_bounds.read_failure_policy,
    FanoutOpts: loops.read_fanout,
    Frame: loops.read_frame,
    Reduce: loops.read_reduce,
    Selection: policies.read_selection,
}
