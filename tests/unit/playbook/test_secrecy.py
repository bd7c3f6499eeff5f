"""Literal secrets in inline credentials: a warning, and an error at the strict level."""

import pytest

from noetl_playbook.parse import parse
from noetl_playbook.problems import Level

TEXT = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: t}
keychain: [{name: k, kind: static, map: {a: b}}]
workload: {w: x}
workflow:
  - step: s
    tool: {kind: http, url: "http://h", auth: AUTH}
"""


def codes(auth: str, level: Level) -> list[tuple[str, bool]]:
    parsed = parse(TEXT.replace("AUTH", auth), level=level)
    return [(problem.code, problem.is_error) for problem in parsed.problems]


@pytest.mark.parametrize(
    "auth",
    [
        "{type: bearer, token: abc}",
        '{type: bearer, token: "{{ workload.w }}"}',
        "{type: basic, username: ann, password: abc}",
        "{type: api_key, header: X, value: abc}",
        "{one: {type: bearer, token: abc}}",
        "{type: oauth2, token_url: u, client_id: i, client_secret: abc}",
    ],
)
def test_a_literal_secret_is_reported(auth: str) -> None:
    assert codes(auth, Level.TOLERANT) == [("W904", False)]
    assert codes(auth, Level.STRICT) == [("W904", True)]


@pytest.mark.parametrize(
    "auth",
    [
        "name",
        '"{{ workload.w }}"',
        "{credential: name}",
        "{source: adc}",
        '{type: bearer, token: "{{ keychain.k.a }}"}',
        "{type: bearer, token: \"{{ token('name') }}\"}",
        '{type: basic, username: ann, password: "x{{ keychain.k.a }}"}',
    ],
)
def test_names_and_keychain_values_are_fine(auth: str) -> None:
    assert codes(auth, Level.STRICT) == []
