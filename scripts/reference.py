# ruff: noqa: E501 - the text of pages has the width of pages
"""The reference pages of the language: sections, tool kinds, names; types and defaults from code."""

from pathlib import Path
from typing import Any

import msgspec
import yaml

from noetl_playbook import filters, lookup, names, schema, tools
from noetl_playbook.aliases import ALSO_KNOWN_AS
from noetl_playbook.field_types import FIELD_TYPES
from noetl_playbook.limits import LIMITS_MAX
from noetl_playbook.loops import FANOUT_ALIASES, FRAME_ALIASES
from noetl_playbook.model import Playbook

ROOT = Path(__file__).resolve().parents[1]
MEANINGS = ROOT / "scripts/meanings.yaml"
_MADE = "Types, defaults and spellings of this page are made from the code by `python -m scripts.pages`."
_ALIASES = {
    "Frame": {**FRAME_ALIASES, "duration_ms": "max_seconds"},
    "FanoutOpts": FANOUT_ALIASES,
}
# The document spells these as another section does, or they are no sections of their own.
_APART = frozenset({"WorkbookTask"})
_NUMBER = frozenset({"integer", "number", "string"})
_NOTHING = "–"  # noqa: RUF001 - as the other pages write it
_WORDS = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "flag",
    "object": "mapping",
    "array": "list",
    "null": "",
}

Schema = dict[str, Any]


def sections() -> str:
    """Write the page of sections: every key of the document, with type, default and meaning."""
    definitions: dict[str, Schema] = schema.document_schema()["$defs"]
    _, models = msgspec.json.schema_components((Playbook,), ref_template="#/$defs/{name}")
    meanings = _meanings()
    parts = [_SECTIONS_HEAD]
    for name, found in definitions.items():
        if name in _APART:
            continue
        parts.append(
            f"\n## {name}\n\n{found['description']}\n\n| key | type | default | meaning |\n|---|---|---|---|\n"
        )
        parts += [
            _row(name, key, models.get(name, found)["properties"].get(key, item), found, meanings)
            for key, item in _own(name, found).items()
        ]
    return "".join(parts)


def keys() -> set[str]:
    """Name every key of every section, as `Section.key`."""
    definitions: dict[str, Schema] = schema.document_schema()["$defs"]
    return {
        f"{name}.{key}"
        for name, found in definitions.items()
        if name not in _APART
        for key in _own(name, found)
    }


def tool_kinds() -> str:
    """Write the page of tool kinds: every field, in every spelling."""
    parts = [_TOOLS_HEAD, _kinds_table()]
    for kind in sorted(tools.KINDS.values(), key=lambda each: each.name):
        parts.append(
            f"\n## {kind.name}\n\n{_availability(kind)}\n\n| field | other spellings | takes |\n|---|---|---|\n"
        )
        parts += [_field(kind, field) for field in sorted(kind.fields)]
    return "".join(parts)


def vocabulary() -> str:
    """Write the page of names: filters, functions, methods, events, limits."""
    return "".join(
        (
            _VOCABULARY_HEAD,
            _listing(
                "Fixed names",
                "Mean the same wherever they exist; nothing hides them.",
                names.FIXED_NAMES,
            ),
            _listing(
                "Last names",
                "Found when no step, variable or input has the name.",
                names.LAST_NAMES,
            ),
            _listing("Functions", "", names.GLOBAL_NAMES),
            _listing("Filters", "", filters.table()),
            _methods(),
            _events(),
            _limits(),
        )
    )


def _meanings() -> dict[str, str]:
    found: dict[str, str] = yaml.safe_load(MEANINGS.read_text("utf-8"))
    return found


def _own(name: str, found: Schema) -> dict[str, Schema]:
    """List the keys of a section without its older spellings."""
    aliases = _ALIASES.get(name, {})
    return {
        key: item
        for key, item in found["properties"].items()
        if key not in aliases and not item.get("deprecated")
    }


def _row(name: str, key: str, item: Schema, section: Schema, meanings: dict[str, str]) -> str:
    default = _default(item) if key not in section.get("required", []) else "required"
    also = [alias for alias, of in _ALIASES.get(name, {}).items() if of == key]
    shown = f"`{key}`" + "".join(f" (`{alias}`)" for alias in also)
    return f"| {shown} | {_type(item)} | {default} | {meanings.get(f'{name}.{key}', '')} |\n"


def _default(item: Schema) -> str:
    value = item.get("default")
    if value in (None, {}, [], ()) or isinstance(value, dict | list):
        return _NOTHING
    return f"`{msgspec.json.encode(value).decode()}`"


def _type(item: Schema) -> str:
    """Say in words what a key takes."""
    if "$ref" in item:
        return _link(item["$ref"])
    if "enum" in item:
        return ", ".join(f"`{each}`" for each in item["enum"])
    if "anyOf" in item:
        return _one_of(item["anyOf"])
    kind = item.get("type")
    if isinstance(kind, list):
        return _one_of([{"type": each} for each in kind])
    if kind == "array" and item.get("items"):
        return f"list of {_type(item['items'])}"
    return _WORDS.get(kind, "anything") if isinstance(kind, str) else "anything"


def _one_of(choices: list[Schema]) -> str:
    plain = {each["type"] for each in choices if isinstance(each.get("type"), str)}
    if plain >= _NUMBER:
        rest = [each for each in choices if each.get("type") not in _NUMBER]
        return " or ".join(each for each in ("number or template", *map(_type, rest)) if each)
    said = dict.fromkeys(_type(each) for each in choices)
    return " or ".join(each for each in said if each) or "anything"


def _link(reference: str) -> str:
    name = reference.rpartition("/")[2]
    return f"[{name}](#{name.lower()})"


def _kinds_table() -> str:
    rows = "".join(
        f"| [`{kind.name}`](#{kind.name}) | {'yes' if kind.is_available else 'no'} |"
        f" {', '.join(f'`{alias}`' for alias, of in tools.KIND_ALIASES.items() if of == kind.name)} |\n"
        for kind in sorted(tools.KINDS.values(), key=lambda each: each.name)
    )
    reserved = ", ".join(f"`{name}`" for name in sorted(tools.RESERVED_KINDS))
    return f"| kind | runs in this release | tolerated spelling |\n|---|---|---|\n{rows}\nReserved: {reserved}.\n"


def _availability(kind: tools.Kind) -> str:
    page = ROOT / f"docs/reference/tools/{kind.name}.md"
    told = (
        f"Described in [tools/{kind.name}.md](../tools/{kind.name}.md)." if page.is_file() else ""
    )
    if not kind.is_available:
        told = f"{told} Accepted, but not run by this release: it connects to no cluster, and a task of this kind fails with `config`."
    needs = ", ".join(f"`{name}`" for name in kind.required)
    source = ", ".join(f"`{name}`" for name in kind.source)
    told += f" Required: {needs}." if needs else ""
    told += f" One of {source}." if source else ""
    return told.strip()


def _field(kind: tools.Kind, field: str) -> str:
    also = ", ".join(f"`{alias}`" for alias, of in sorted(kind.aliases.items()) if of == field)
    declared = FIELD_TYPES.get(kind.name, {}).get(field)
    return f"| `{field}` | {also} | {declared.expected if declared else 'any value'} |\n"


def _listing(title: str, about: str, found: Any) -> str:
    text = ", ".join(f"`{name}`" for name in sorted(found))
    return f"\n## {title}\n\n{about} {text}.\n".replace("\n\n ", "\n\n")


def _methods() -> str:
    rows = "".join(
        f"| {of} | {', '.join(f'`{name}`' for name in sorted(found))} |\n"
        for of, found in lookup.METHODS.items()
    )
    return f"\n## Methods\n\nEverything else is refused.\n\n| of | methods |\n|---|---|\n{rows}"


def _events() -> str:
    rows = "".join(
        f"| `{name}` | {', '.join(f'`{each}`' for each in sorted(also)) or _NOTHING} |\n"
        for name, also in ALSO_KNOWN_AS.items()
    )
    return f"\n## Events at a step's end\n\n| `event.name` | also equals |\n|---|---|\n{rows}"


def _limits() -> str:
    rows = "".join(f"| `{name}` | {most:,} |\n" for name, most in LIMITS_MAX.items())
    return (
        "\n## Limits that a playbook may lower\n\n`executor.spec.policy.limits`; none may be raised."
        f"\n\n| limit | highest value |\n|---|---|\n{rows}"
    )


_SECTIONS_HEAD = f"""# Sections of a playbook

```yaml
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: orders, labels: {{nightly: true, priority: 7}}}}
workload: {{api: "http://127.0.0.1:8700"}}
workflow:
  - step: fetch
    tool: {{kind: http, url: "{{{{ api }}}}/orders"}}
    retry: {{max_attempts: 3, delay: 2, backoff: exponential}}
    next: count
  - step: count
    tool: {{kind: noop, result: {{done: true}}}}
```

## Short forms

Write these first; the long form is for what they cannot say. The parser reads both as the same playbook.

| short | the same as |
|---|---|
| `next: b` | `next: {{spec: {{mode: inclusive}}, arcs: [{{step: b}}]}}` |
| `next: [a, b]` | both, at once: `next: {{spec: {{mode: inclusive}}, arcs: [{{step: a}}, {{step: b}}]}}` |
| `next: [{{step: a, when: …}}, {{step: b}}]` | the first that matches: `next: {{spec: {{mode: exclusive}}, arcs: […]}}` |
| `retry: 3`, `retry: true`, `retry: {{max_attempts: 3, …}}` | a policy rule `do: retry` in front of the task's own: [Retry](#retry). On a step with several tasks it is for each |
| `retry: {{when: …, next_call: …, collect: …}}` | the task is called again after a success, and what it returned is collected |
| `pagination: {{continue_while: …, next_page: …}}` | the same for the pages of an API: [Pagination](#pagination) |

Scalars are text wherever text is expected, as they are written: a label `true`, a version `1.10`, a date.

## Every key

{_MADE} Older spellings are in [older-forms.md](older-forms.md), what is
checked in [problems.md](problems.md), the fields of each tool kind in [tools.md](tools.md). `noetl schema playbook`
prints the JSON Schema for editors.

A number may be a template; sizes may be written `64MiB`, durations `500ms`, `30s`, `5m`, `2h`, `1d`; flags
also as `"yes"`, `"no"`, `"on"`, `"off"`, `"1"`, `"0"`.
"""
_TOOLS_HEAD = f"""# Tool kinds

{_MADE} What fields mean, results and errors are on the page of each kind. The keys that all tasks share are
those of [Task](sections.md#task).

"""
_VOCABULARY_HEAD = f"""# Vocabulary

{_MADE} How names are found and templates are evaluated is told in [execution.md](execution.md).
"""
