"""Documents that are meant to hurt: refused by a child process with little memory and time.

The child has 60 s of processor and 1.5 GiB of addresses from its kernel; a parser that wants more
dies of it, and so does the test.
"""

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.support.playbooks import HEADER, document

PROCESSOR_S = 60
ADDRESSES_BYTES = 1536 * 1024 * 1024
CHILD = """
import sys
from noetl_playbook.parse.mixed_text import read_mixed_bytes
from noetl_playbook.source.problems import Level
data = sys.stdin.buffer.read()
for level in Level:
    for parsed in read_mixed_bytes(data, level=level).playbooks:
        assert (parsed.playbook is None) == any(each.is_error for each in parsed.problems)
        print(level.value, *sorted({each.code for each in parsed.problems}), len(parsed.problems))
"""
MEBIBYTE = 1024 * 1024
NOOP = "{step: a, tool: {kind: noop}}"


def laughs() -> str:
    rows = ["l0: &l0 [ha, ha, ha, ha, ha, ha, ha, ha, ha, ha]"]
    rows += [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 10)}]" for i in range(1, 12)]
    return "\n".join(rows)


def long_text_often() -> str:
    return f"a: &a {'x' * MEBIBYTE}\nb: [{', '.join(['*a'] * 100_000)}]"


def merges() -> str:
    rows = ["m0: &m0 {" + ", ".join(f"k{i}: 1" for i in range(1000)) + "}"]
    rows += [f"m{i}: &m{i} {{<<: [{', '.join([f'*m{i - 1}'] * 30)}]}}" for i in range(1, 30)]
    return "\n".join(rows)


def many_steps(count: int) -> str:
    return document("\n".join("- {}" for _ in range(count)))


def backward_graph() -> str:
    """Every step leads to those before it: the worst order for a naive closure."""
    steps = []
    for i in range(600):
        arcs = ", ".join(f"{{step: s{max(0, i - j)}}}" for j in range(1, 180))
        steps.append(f"- {{step: s{i}, tool: {{kind: noop}}, next: {{arcs: [{arcs}]}}}}")
    text = "\n".join(steps)
    return document(text[: text.rfind("\n", 0, 2 * MEBIBYTE - 500)])


def unknown_targets() -> str:
    arcs = ", ".join(f"{{step: nowhere-at-all-{i}}}" for i in range(200))
    first = f"- {{step: s0, tool: {{kind: noop}}, next: &n {{arcs: [{arcs}]}}}}\n"
    rest = "\n".join(f"- {{step: s{i}, tool: {{kind: noop}}, next: *n}}" for i in range(1, 800))
    return document(first + rest)


def in_code(template: str) -> str:
    quoted = msgspec.json.encode(template).decode()
    return document(f"- {{step: a, tool: {{kind: python, code: {quoted}}}}}")


HOSTILE: dict[str, tuple[Callable[[], str | bytes], str]] = {
    "a billion laughs": (laughs, "E605"),
    "a long text, often": (long_text_often, "E605"),
    "merges of merges": (merges, "E605"),
    "a merge of itself": (lambda: "a: &a {<<: *a}", "E101"),
    "an alias inside its anchor": (lambda: "a: &a [1, {b: *a}]", "E101"),
    "flow lists, deep": (lambda: "a: " + "[" * 200_000, "E605"),
    "flow mappings, deep": (lambda: "a: " + "{b: " * 100_000, "E605"),
    "block lists, deep": (
        lambda: "a:\n" + "".join(" " * i + "-\n" for i in range(1, 1500)),
        "E605",
    ),
    "one byte too many": (lambda: "#" * (2 * MEBIBYTE + 1), "E605"),
    "a million items": (lambda: "a: [" + "1," * 1_000_000 + "1]", "E605"),
    "megabytes of key": (lambda: "? " + "k" * MEBIBYTE + "\n: 1", "E102"),
    "a number of a million digits": (
        lambda: HEADER + "workload: {n: " + "9" * MEBIBYTE + "}",
        "E101",
    ),
    "a number of a million hexadecimal digits": (
        lambda: HEADER + "workload: {n: 0x" + "f" * MEBIBYTE + "}",
        "E101",
    ),
    "a hundred thousand steps": (lambda: many_steps(100_000), "E601"),
    "a hundred thousand unknown keys": (
        lambda: HEADER + "".join(f"key{i}: 1\n" for i in range(100_000)),
        "W910",
    ),
    "a hundred thousand keys written twice": (
        lambda: HEADER + "kind: Playbook\n" * 100_000,
        "W910",
    ),
    "targets that do not exist": (unknown_targets, "E203"),
    "arcs that all lead back": (backward_graph, "E205"),
    "a template of a mebibyte": (lambda: in_code("{{ 1 }}" + "x" * MEBIBYTE), "E602"),
    "a long template by many aliases": (
        lambda: (
            HEADER
            + "workload: {a: &a '{{ 1 + }}"
            + "x" * 500_000
            + f"', b: [{', '.join(['*a'] * 30)}]}}\nworkflow: [{NOOP}]\n"
        ),
        "E301",
    ),
    "braces that never close": (lambda: in_code("{{" * 400_000), "E301"),
    "literals that never close": (lambda: in_code("`}}" + "{{`" * 300_000), "E301"),
    "parentheses, deep": (lambda: in_code("{{ " + "(" * 300_000 + " }}"), "E301"),
    "blocks, deep": (lambda: in_code("{% if 1 %}" * 50_000), "E301"),
    "a power that would fill the memory": (
        lambda: in_code("{{ 9 ** 9 ** 9 ** 9 }}{{ nowhere }}"),
        "E303",
    ),
    "twenty thousand templates": (
        lambda: (
            HEADER
            + "workload:\n"
            + "".join(f"  k{i}: '{{{{n{i}}}}}'\n" for i in range(20_000))
            + f"workflow: [{NOOP}]\n"
        ),
        "E303",
    ),
    "bytes that are not UTF-8": (lambda: HEADER.encode() + b"desc: \xff\xfe\n", "E101"),
    "UTF-16": (lambda: HEADER.encode("utf-16"), "E101"),
    "UTF-16 without its mark": (lambda: HEADER.encode("utf-16-le"), "E101"),
    "a NUL": (lambda: HEADER.encode() + b"desc: \x00\n", "E101"),
    "a mark of byte order inside": (lambda: HEADER + "desc: \ufeff\n---\n\ufeffa: \ufffe", "E101"),
    "nothing": (lambda: b"", "E101"),
}
OBJECTS = [
    "!!python/object/apply:os.system ['touch canary']",
    "!!python/object/new:os.system ['touch canary']",
    "!!python/name:os.system",
    "!!python/module:os",
    "!!python/tuple [1]",
    "!<tag:yaml.org,2002:python/object/apply:os.system> ['touch canary']",
    "!!binary aGk=",
    "!!timestamp 2026-01-01",
    "!!set {a}",
    "!include /etc/passwd",
    "!env HOME",
]


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_S, PROCESSOR_S))
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES_BYTES, ADDRESSES_BYTES))


def judged_apart(data: str | bytes, folder: Path) -> list[list[str]]:
    """Parse in a child process; give its codes for each level."""
    done = subprocess.run(  # noqa: S603 (our own interpreter)
        [sys.executable, "-c", CHILD],
        input=data.encode() if isinstance(data, str) else data,
        capture_output=True,
        check=False,
        cwd=folder,
        preexec_fn=limited,
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    assert done.stderr == b""
    return [line.split()[1:] for line in done.stdout.decode().splitlines()]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_document_is_answered_in_bounds(name: str, tmp_path: Path) -> None:
    make, code = HOSTILE[name]
    answers = judged_apart(make(), tmp_path)
    assert len(answers) >= 2
    for answer in answers:
        assert code in answer
        assert int(answer[-1]) <= 2002


@pytest.mark.parametrize("written", OBJECTS)
def test_a_tag_makes_nothing(written: str, tmp_path: Path) -> None:
    answers = judged_apart(f"{HEADER}workload:\n  a: {written}\n", tmp_path)
    assert answers == [["E101", "1"], ["E101", "1"]]
    assert list(tmp_path.iterdir()) == []


def test_a_leading_mark_of_byte_order_is_no_part_of_the_text(tmp_path: Path) -> None:
    data = b"\xef\xbb\xbf" + f"{HEADER}workflow: [{NOOP}]\n".encode()
    assert judged_apart(data, tmp_path) == [["0"], ["0"]]
