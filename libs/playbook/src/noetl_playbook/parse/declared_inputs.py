"""The root section `inputs`: which inputs a playbook requires, and what is said when one lacks."""

from collections.abc import Iterable, Mapping
from typing import Any

from noetl_playbook.model.playbook import InputDeclaration
from noetl_playbook.parse.inputs import InputFault
from noetl_playbook.source.document_reader import DocumentReader, describe_value

_FORM = "write inputs: {region: {required: true}}"
_SHOWN_MAX = 20


def read_declared_inputs(
    reading: DocumentReader, value: Any, workload: Mapping[str, Any]
) -> dict[str, InputDeclaration]:
    """Read the section; an input has a default in the workload, or is required."""
    input_declarations: dict[str, InputDeclaration] = {}
    for name, item in (reading.read_mapping(value, ("inputs",)) or {}).items():
        if not isinstance(item, dict):
            reading.report_problem(
                "E104",
                ("inputs", name),
                f"expected a mapping, found {describe_value(item)}",
                hint=_FORM,
            )
            continue
        faults = len(reading.problems)
        declaration = reading.read_struct(InputDeclaration, item, ("inputs", name))
        if declaration is None or len(reading.problems) > faults:
            continue
        input_declarations[name] = declaration
        if declaration.required and name in workload:
            reading.report_problem(
                "E104",
                ("inputs", name),
                f"the input '{name}' is required, and the workload has a default for it",
                hint=f"remove '{name}' from workload, or 'required'",
                of_key=True,
            )
        if not declaration.required and name not in workload:
            reading.report_problem(
                "E104",
                ("inputs", name),
                f"the input '{name}' has no default",
                hint=f"write workload: {{{name}: null}}, or another default, or required: true",
                of_key=True,
            )
    return input_declarations


def find_missing_inputs(
    declared: Mapping[str, InputDeclaration], input_names: Iterable[str]
) -> InputFault | None:
    """Judge what a start gives; null is a value."""
    names = set(input_names)
    missing = {
        name: declaration.description
        for name, declaration in declared.items()
        if declaration.required and name not in names
    }
    if not missing:
        return None
    names_text = ", ".join(
        repr(name) + (f" ({description})" if description else "")
        for name, description in list(missing.items())[:_SHOWN_MAX]
    )
    word, verb = ("input", "is") if len(missing) == 1 else ("inputs", "are")
    more_text = f" and {len(missing) - _SHOWN_MAX} more" if len(missing) > _SHOWN_MAX else ""
    return InputFault(
        message=f"the playbook requires the {word} {names_text}{more_text}, which {verb} not given",
        hint=f"give a value, null too: --set {next(iter(missing))}=VALUE, or a key of `workload`",
        is_refused=True,
    )
