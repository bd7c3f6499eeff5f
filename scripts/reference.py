# ruff: noqa: E501 - the text of pages has the width of pages
"""The reference pages of the language: sections, tool kinds, names; types and defaults from code."""

from pathlib import Path
from typing import Any

import msgspec
import yaml

from noetl_playbook import schema
from noetl_playbook.model import language_names, tools
from noetl_playbook.model.language_names import ALSO_KNOWN_AS
from noetl_playbook.model.playbook import Playbook
from noetl_playbook.sections.field_types import FIELD_TYPES
from noetl_playbook.sections.limits import LIMITS_MAX
from noetl_playbook.sections.loops import FANOUT_ALIASES, FRAME_ALIASES
from noetl_playbook.templates import filters, lookup

ROOT = Path(__file__).resolve().parents[1]
MEANINGS = ROOT / "scripts/meanings.yaml"
SAMPLES = ROOT / "scripts/samples.yaml"
_MADE = "This page is made from the code: `python -m scripts.pages`."
_ALIASES = {
    "Frame": {**FRAME_ALIASES, "duration_ms": "max_seconds"},
    "FanoutOpts": FANOUT_ALIASES,
}
# The document spells these as another section does, or they are no sections of their own.
_APART = frozenset({"WorkbookTask"})
_WORDS = {
    "string": "text",
    "integer": "integer",
    "number": "number",
    "boolean": "flag",
    "object": "mapping",
    "array": "list",
    "null": "",
}

Schema = dict[str, Any]


def sections() -> str:
    """Write the page of sections: every key of the document, with type, default and meaning."""
    definitions: dict[str, Schema] = schema.build_document_schema()["$defs"]
    _, models = msgspec.json.schema_components((Playbook,), ref_template="#/$defs/{name}")
    root = models["Playbook"]["properties"]
    # The model's own `inputs` are worked out by parsing.
    root["inputs"] = root.pop("declared_inputs")
    meanings = _read_texts(MEANINGS)
    samples = _read_texts(SAMPLES)
    parts = [_SECTIONS_HEAD]
    for name, definition in definitions.items():
        if name in _APART:
            continue
        sample = f"```yaml\n{samples[name]}```\n\n" if name in samples else ""
        parts.append(f"\n## {name}\n\n{definition['description']}\n\n{sample}")
        parts += _entries(name, models.get(name, definition)["properties"], definition, meanings)
    return "".join(parts)


def keys() -> set[str]:
    """Name every key of every section, as `Section.key`."""
    definitions: dict[str, Schema] = schema.build_document_schema()["$defs"]
    return {
        f"{name}.{key}"
        for name, definition in definitions.items()
        if name not in _APART
        for key in _own(name, definition)
    }


def tool_kinds() -> str:
    """Write the page of tool kinds: every field, in every spelling."""
    reserved = ", ".join(f"`{name}`" for name in sorted(tools.RESERVED_KINDS))
    kinds = sorted(tools.KINDS.values(), key=lambda each: each.name)
    return f"{_TOOLS_HEAD}\nReserved words, which run nothing: {reserved}.\n" + "".join(
        _kind(kind) for kind in kinds
    )


def vocabulary() -> str:
    """Write the page of names: filters, functions, methods, events, limits."""
    return "".join(
        (
            _VOCABULARY_HEAD,
            _listing(
                "Fixed names",
                "Mean the same wherever they exist; nothing hides them.",
                language_names.FIXED_NAMES,
            ),
            _listing(
                "Last names",
                "Found when no step, variable or input has the name.",
                language_names.LAST_NAMES,
            ),
            _listing("Functions", "", language_names.GLOBAL_NAMES),
            _listing("Filters", "", filters.list_filters()),
            _methods(),
            _events(),
            _limits(),
        )
    )


def _read_texts(file: Path) -> dict[str, str]:
    texts: dict[str, str] = yaml.safe_load(file.read_text("utf-8"))
    return texts


def _own(name: str, schema: Schema) -> dict[str, Schema]:
    """List the keys of a section without its older spellings."""
    aliases = _ALIASES.get(name, {})
    return {
        key: item
        for key, item in schema["properties"].items()
        if key not in aliases and not item.get("deprecated")
    }


def _entries(name: str, types: Schema, section: Schema, meanings: dict[str, str]) -> list[str]:
    """Write a line for each key that has a meaning, and one for the others."""
    entries, unexplained_keys = [], []
    for key, item in _own(name, section).items():
        meaning = meanings.get(f"{name}.{key}", "")
        key_text = _key(name, key, types.get(key, item), section, meaning)
        if meaning:
            entries.append(f"* {key_text}: {meaning}\n")
        else:
            unexplained_keys.append(key_text)
    return [*entries, f"* {', '.join(unexplained_keys)}\n"] if unexplained_keys else entries


def _key(name: str, key: str, item: Schema, section: Schema, meaning: str) -> str:
    """Write a key with its default, its spellings and what it takes, unless the meaning says it."""
    also = [alias for alias, of in _ALIASES.get(name, {}).items() if of == key]
    key_text = f"`{key}{_default(item)}`" + "".join(f", `{alias}`" for alias in also)
    choices = [f"`{entry}`" for entry in item.get("enum", ())]
    is_told = choices and all(choice in meaning for choice in choices)
    is_plain = _default(item) and _type(item) in ("integer", "number", "flag")
    takes = "" if is_told or is_plain else _type(item).removeprefix("text")
    required = "required" if key in section.get("required", []) else ""
    conditions_text = ", ".join(part for part in (takes, required) if part)
    return f"{key_text} ({conditions_text})" if conditions_text else key_text


def _default(item: Schema) -> str:
    value = item.get("default")
    if value in (None, {}, [], ()) or isinstance(value, dict | list):
        return ""
    return f": {value if isinstance(value, str) else msgspec.json.encode(value).decode()}"


def _type(item: Schema) -> str:
    """Say in words what a key takes."""
    if "$ref" in item:
        return _link(item["$ref"])
    if "enum" in item:
        return ", ".join(f"`{entry}`" for entry in item["enum"])
    if "anyOf" in item:
        return _one_of(item["anyOf"])
    kind = item.get("type")
    if isinstance(kind, list):
        return _one_of([{"type": entry} for entry in kind])
    if kind == "array" and item.get("items") == {}:
        return "list"
    if kind == "array" and item.get("items"):
        return f"list of {_type(item['items'])}"
    return _WORDS.get(kind, "anything") if isinstance(kind, str) else "anything"


def _one_of(choices: list[Schema]) -> str:
    """Say what a key takes that has a choice; that text may be a template is said above the sections."""
    plain = {choice["type"] for choice in choices if isinstance(choice.get("type"), str)}
    if {"integer", "string"} <= plain:
        choices = [choice for choice in choices if choice.get("type") != "string"]
    if {"integer", "number"} <= plain:
        choices = [choice for choice in choices if choice.get("type") != "integer"]
    if plain >= {"string", "boolean"}:
        return "condition"
    type_names = dict.fromkeys(_type(choice) for choice in choices)
    return " or ".join(item for item in type_names if item) or "anything"


def _link(reference: str) -> str:
    name = reference.rpartition("/")[2]
    return f"[{name}](#{name.lower()})"


def _kind(kind: tools.ToolKind) -> str:
    aliases = [f"`{alias}`" for alias, of in tools.KIND_ALIASES.items() if of == kind.name]
    also = f" Also spelled {', '.join(aliases)}." if aliases else ""
    typed = FIELD_TYPES.get(kind.name, {})
    groups: dict[str, list[str]] = {}
    for field in sorted(kind.fields):
        expected = typed[field].expected if field in typed else "any value"
        groups.setdefault(expected, []).append(_spellings(kind, field))
    fields = "".join(f"* {expected}: {'; '.join(names)}\n" for expected, names in groups.items())
    return f"\n## {kind.name}\n\n{_availability(kind)}{also}\n\n{fields}"


def _availability(kind: tools.ToolKind) -> str:
    page = ROOT / f"docs/reference/tools/{kind.name}.md"
    text = f"[Page](../tools/{kind.name}.md)." if page.is_file() else ""
    if not kind.is_available:
        text = "Accepted, but not run by this release: a task of this kind fails with `config`."
    needs = ", ".join(f"`{name}`" for name in kind.required)
    source = ", ".join(f"`{name}`" for name in kind.source)
    text += f" Required: {needs}." if needs else ""
    text += f" One of {source}." if source else ""
    return text.strip()


def _spellings(kind: tools.ToolKind, field: str) -> str:
    also = "".join(f", `{alias}`" for alias, of in sorted(kind.aliases.items()) if of == field)
    return f"`{field}`{also}"


def _listing(title: str, about: str, names: Any) -> str:
    text = ", ".join(f"`{name}`" for name in sorted(names))
    return f"\n## {title}\n\n{about} {text}.\n".replace("\n\n ", "\n\n")


def _methods() -> str:
    rows = "".join(
        f"* {of}: {', '.join(f'`{name}`' for name in sorted(methods))}\n"
        for of, methods in lookup.METHODS.items()
    )
    return f"\n## Methods\n\nEverything else is refused.\n\n{rows}"


def _events() -> str:
    rows = "".join(
        f"* `{name}`{''.join(f', `{item}`' for item in sorted(also))}\n"
        for name, also in ALSO_KNOWN_AS.items()
    )
    return (
        "\n## Events at a step's end\n\n`event.name`, and the names that equal it:\n\n"
        f"{rows}\n```yaml\nnext: {{arcs: [{{step: done, on: call.done}}, {{step: repair, on: call.error}}]}}\n```\n"
    )


def _limits() -> str:
    rows = "".join(f"        {name}: {most}\n" for name, most in LIMITS_MAX.items())
    return (
        "\n## Limits that a playbook may lower\n\nThese are the highest values; none may be raised.\n\n"
        f"```yaml\nexecutor:\n  spec:\n    policy:\n      limits:\n{rows}```\n"
    )


_SECTIONS_HEAD = f"""# Sections of a playbook

```yaml
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: orders}}
workload: {{api: "http://127.0.0.1:8700"}}
workflow:
  - step: fetch
    tool: {{kind: http, url: "{{{{ api }}}}/orders"}}
    retry: {{max_attempts: 3, delay: 2, backoff: exponential}}
    next: count
  - step: count
    tool: {{kind: noop, result: {{done: true}}}}
```

{_MADE} `noetl schema playbook` prints the JSON Schema.
See also [tools](tools.md), [problems](problems.md), [older forms](older-forms.md).

## Short forms

The parser reads a short form as its long form.

```yaml
- {{step: a, tool: {{kind: noop}}, next: b}}                 # {{spec: {{mode: inclusive}}, arcs: [{{step: b}}]}}
- {{step: b, tool: {{kind: noop}}, next: [c, d]}}            # both: {{spec: {{mode: inclusive}}, arcs: [...]}}
- step: c
  tool: {{kind: noop}}
  next: [{{step: d, when: "{{{{ c.ok }}}}"}}, {{step: e}}]     # the first that matches: mode exclusive
- step: d
  tool: {{kind: http, url: "https://api.example.org"}}
  retry: 3                                             # a rule do: retry before the task's own; true is 3
```

* `retry` on a step holds for each of its tasks. With `next_call` or `collect` it calls the task again after a success: [Retry](#retry).
* `pagination` fetches the pages of an API: [Pagination](#pagination).

## Values

```yaml
- step: load
  tool: {{kind: http, url: "https://api.example.org", timeout: 30s}}     # 500ms, 30s, 5m, 2h, 1d; sizes: 64MiB
  spec: {{policy: {{admit: {{rules: [{{when: "{{{{ workload.region == 'eu' }}}}", then: {{allow: "yes"}}}}]}}}}}}
```

* Lists show `key: default`. A key without default and type takes text; a scalar (`true`, `1.10`, a date) stays as written. A number may be a template.
* A flag may be `"yes"`, `"no"`, `"on"`, `"off"`, `"1"` or `"0"`. A condition is `true`, `false` or a template.
"""
_TOOLS_HEAD = f"""# Tool kinds

```yaml
- {{step: load, tool: {{kind: postgres, auth: main_db, query: TABLE orders}}, next: send}}
- {{step: send, tool: {{kind: http, method: POST, url: "https://api.example.org", json: "{{{{ load.rows }}}}"}}}}
```

{_MADE} Meanings, results and errors are on the page of each kind. After a field stand its
other spellings. All tasks share the keys of [Task](sections.md#task).
"""
_VOCABULARY_HEAD = f"""# Vocabulary

```yaml
tool:
  kind: noop
  result:
    run: "{{{{ execution_id }}}}"
    day: "{{{{ now().date() | iso8601 }}}}"
    names: "{{{{ load.rows | pluck('name') | unique | list }}}}"
next: [{{step: done, when: "{{{{ event.name == 'call.done' }}}}"}}]
```

{_MADE} How names are found and templates are evaluated is told in [execution.md](execution.md).
"""
