"""Tools of one process after another in one playbook, without any server."""

from pathlib import Path

import msgspec
import pytest
from tests.support.running_api import Noetl

PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: tools, path: demo/tools}
workload: {who: ann}
workflow:
  - step: say
    tool:
      kind: shell
      env: {WHO: "{{ workload.who }}"}
      cmds: ["printf 'hi %s' \\"$WHO\\"", "exit 1"]
      spec:
        policy:
          rules: [{when: "{{ output.shell.returncode == 1 }}", then: {do: continue}}]
    next: {arcs: [{step: count}]}
  - step: count
    tool: {kind: python, input: {text: "{{ say.stdout }}"}, script: {uri: count.py}}
    next: {arcs: [{step: check}]}
  - step: check
    tool: {kind: noop, result: "{{ count.length }} {{ count.who }} {{ say.results | length }}"}
    set: {ctx.outcome: "{{ check }}"}
"""
SCRIPT = """\
def main(text, context):
    return {"length": len(text), "who": context["workload"]["who"]}
"""


@pytest.fixture
def playbook(tmp_path: Path) -> Path:
    (tmp_path / "count.py").write_text(SCRIPT)
    path = tmp_path / "tools.yaml"
    path.write_text(PLAYBOOK)
    return path


def test_shell_and_python_hand_on_to_each_other(
    noetl: Noetl, playbook: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOETL_WORKER_SHELL_ALLOWED", "true")
    monkeypatch.setenv("NOETL_WORKER_SCRIPT_DIRECTORY", str(playbook.parent))
    outcome = noetl("run", str(playbook), "-r", "local", "--json")
    events = [msgspec.json.decode(line) for line in outcome.out.splitlines()]
    assert events[-1]["event_type"] == "playbook.completed", outcome.err
    assert "6 ann 2" in outcome.out


def test_a_machine_that_allows_no_scripts_says_how_to_allow_them(
    noetl: Noetl, playbook: Path
) -> None:
    outcome = noetl("run", str(playbook), "-r", "local")
    assert outcome.code == 1
    assert "NOETL_WORKER_SHELL_ALLOWED=true" in outcome.err


FAILING = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: failing, path: demo/failing}
workflow:
  - step: read
    tool:
      kind: python
      code: |
        print("reading")
        rows = {}
        return rows["missing"]
"""


def test_a_failure_of_user_code_shows_class_message_line_and_traceback(
    noetl: Noetl, tmp_path: Path
) -> None:
    path = tmp_path / "failing.yaml"
    path.write_text(FAILING)
    outcome = noetl("run", str(path), "-r", "local")
    assert outcome.code == 1
    told = "error in step read: transform: KeyError: 'missing' (line 3: return rows[\"missing\"])"
    assert told in outcome.err
    told = '    File "<code of step read>", line 3, in <module>\n      return rows["missing"]\n'
    assert told in outcome.err
