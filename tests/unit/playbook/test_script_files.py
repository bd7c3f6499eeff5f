"""Scripts beside a playbook: read with it, checked, and carried in its canonical form."""

from base64 import b64decode
from collections.abc import Mapping
from typing import Any

import pytest

from noetl_contracts import codec
from noetl_playbook.parse.playbook import ParsedPlaybook, parse_playbook, parse_playbooks
from noetl_playbook.sections.script_files import SCRIPT_BYTES_MAX, SCRIPTS_BYTES_MAX, ScriptFault

CODE = "result = {'text': f'{{1}} {% if %}'}\n"
HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: a, path: a}\n"


def of(*scripts: str, kind: str = "python") -> str:
    steps = "".join(
        f"  - {{step: s{place}, tool: {{kind: {kind}, script: {script}}}}}\n"
        for place, script in enumerate(scripts)
    )
    return f"{HEAD}workflow:\n{steps}"


def read(text: str, files: Mapping[str, str]) -> ParsedPlaybook:
    def read_script(name: str) -> str:
        if name not in files:
            raise ScriptFault(f"script {name!r} is not there", hint="write it")
        return files[name]

    return parse_playbook(text, read_script=read_script)


def script_of(parsed: ParsedPlaybook, step: int = 0) -> dict[str, Any]:
    assert parsed.playbook is not None, parsed.problems
    script = parsed.playbook.workflow[step].tool[0].fields["script"]
    assert isinstance(script, dict)
    return script


def errors(parsed: ParsedPlaybook) -> list[tuple[str, int]]:
    return [(problem.code, problem.line) for problem in parsed.problems if problem.is_error]


@pytest.mark.parametrize("kind", ["python", "shell", "postgres", "spark"])
def test_a_file_beside_the_playbook_is_carried_by_its_content(kind: str) -> None:
    parsed = read(of("{uri: lib/model.py}", kind=kind), {"lib/model.py": CODE})
    found = script_of(parsed)
    assert found["uri"] == "lib/model.py"
    assert found["sha256"] == codec.digest_hex(CODE.encode()).removeprefix("sha256:")
    assert found["source"]["type"] == "inline"
    assert b64decode(found["source"]["code_b64"]).decode() == CODE
    assert parsed.script_by_name == {"lib/model.py": CODE}


@pytest.mark.parametrize(
    "script",
    [
        "{uri: 'file:model.py'}",
        "{uri: 'https://example.org/model.py'}",
        "{uri: 's3://bucket/model.py', source: {auth: keys}}",
        "{uri: model.py, source: {type: file}}",
        '{uri: "{{ workload.file }}"}',
        "{source: {code: x}}",
    ],
)
def test_a_script_from_elsewhere_stays_as_it_is(script: str) -> None:
    text = of(script).replace("workflow:", "workload: {file: x}\nworkflow:")
    parsed = read(text, {})
    assert errors(parsed) == []
    assert "code_b64" not in str(script_of(parsed))


def test_without_files_a_name_is_one_of_the_workers() -> None:
    parsed = parse_playbook(of("{uri: model.py}"))
    assert script_of(parsed) == {"uri": "model.py"}


def test_a_file_that_is_not_there_is_told_with_its_place() -> None:
    parsed = read(of("{uri: a.py}", "{uri: b.py}"), {"a.py": CODE})
    assert errors(parsed) == [("E202", 6)]
    (problem,) = [item for item in parsed.problems if item.is_error]
    assert (problem.path, problem.hint) == ("workflow[1].tool.script.uri", "write it")


def test_a_digest_must_be_that_of_the_file() -> None:
    digest = codec.digest_hex(CODE.encode())
    right = digest.removeprefix("sha256:")
    for good in (right, digest, right.upper()):
        assert errors(read(of(f"{{uri: a.py, sha256: '{good}'}}"), {"a.py": CODE})) == []
    wrong = read(of(f"{{uri: a.py, sha256: '{right[:-1]}0'}}"), {"a.py": CODE + "#"})
    assert errors(wrong) == [("E104", 5)]


def test_scripts_are_bounded_each_and_together() -> None:
    whole = "x" * SCRIPT_BYTES_MAX
    count = SCRIPTS_BYTES_MAX // SCRIPT_BYTES_MAX
    names = [f"f{place}.py" for place in range(count + 1)]
    scripts = [f"{{uri: {name}}}" for name in names]
    assert errors(read(of(*scripts[:count]), dict.fromkeys(names, whole))) == []
    assert errors(read(of(*scripts), dict.fromkeys(names, whole))) == [("E605", 5 + count)]
    assert errors(read(of(scripts[0]), {names[0]: whole + "x"})) == [("E605", 5)]
    # One file for many tasks counts once.
    assert errors(read(of(*scripts[:1] * 9), {names[0]: whole})) == []


def test_scripts_of_tasks_inside_tasks_and_of_workbooks_are_carried_too() -> None:
    text = (
        f"{HEAD}workbook:\n"
        "  - {name: shared, tool: {kind: python, script: {uri: a.py}}}\n"
        "workflow:\n"
        "  - {step: one, tool: {kind: workbook, task: shared}, next: two}\n"
        "  - step: two\n"
        "    tool: {kind: external, submit: {kind: python, script: {uri: b.py}}, timeout: 1}\n"
    )
    parsed = read(text, {"a.py": CODE, "b.py": CODE + "#"})
    assert parsed.playbook is not None, parsed.problems
    assert parsed.script_by_name.keys() == {"a.py", "b.py"}
    assert "code_b64" in str(parsed.playbook.workflow[0].tool[0].fields)
    assert "code_b64" in str(parsed.playbook.workflow[1].tool[0].fields["submit"])


def test_each_playbook_of_a_text_has_the_files_that_it_names() -> None:
    other = of("{uri: b.py}").replace("name: a, path: a", "name: b, path: b")
    text = f"{of('{uri: a.py}')}---\n{other}"
    files = {"a.py": CODE, "b.py": CODE}
    playbooks = parse_playbooks(text, read_script=lambda name: files[name])
    assert [list(playbook.script_by_name) for playbook in playbooks] == [["a.py"], ["b.py"]]


def test_a_canonical_script_is_read_again_as_it_is() -> None:
    first = script_of(read(of("{uri: a.py}"), {"a.py": CODE}))
    again = parse_playbook(of(codec.encode_json(first).decode()))
    assert script_of(again) == first
