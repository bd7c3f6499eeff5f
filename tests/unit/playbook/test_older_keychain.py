"""Keychain entries that say `type` for their kind, and credentials that name an entry."""

import pytest
from tests.support.playbooks import judged

from noetl_playbook.source.problems import Level

NOOP = "- {step: a, tool: {kind: noop}}"
CALL = "- {step: a, tool: {kind: http, url: u, auth: %s}}"


@pytest.mark.parametrize("written", ["oauth2", "oauth", "oauth2_client_credentials"])
def test_the_type_of_an_older_entry_is_its_kind(written: str) -> None:
    root = f"keychain:\n  - {{name: shop, type: {written}, auth: shop_app}}\n"
    found = judged(NOOP, root=root)
    assert [(problem.code, problem.path, problem.replacement) for problem in found.problems] == [
        ("W902", "keychain[0].type", "kind: oauth2")
    ]
    assert found.playbook is not None
    today = judged(NOOP, root="keychain:\n  - {name: shop, kind: oauth2, auth: shop_app}\n")
    assert today.problems == ()
    assert today.playbook is not None
    assert found.playbook.keychain == today.playbook.keychain
    assert judged(NOOP, root=root, level=Level.STRICT).playbook is None


@pytest.mark.parametrize(
    "entry", ["{name: shop, auth: app}", "{name: shop, type: moon, auth: app}"]
)
def test_an_entry_without_a_kind_is_shown_its_canonical_form(entry: str) -> None:
    (problem,) = judged(NOOP, root=f"keychain:\n  - {entry}\n").problems
    assert (problem.code, problem.path, problem.is_error) == ("E104", "keychain[0]", True)
    assert problem.hint is not None
    assert "{name: shop, kind: oauth2, auth: app}" in problem.hint.replace('"', "")


@pytest.mark.parametrize("key", ["credential", "key"])
def test_bearer_takes_its_token_from_an_entry_by_name(key: str) -> None:
    root = "keychain:\n  - {name: shop, kind: oauth2, auth: shop_app}\n"
    assert judged(CALL % f"{{type: bearer, {key}: shop}}", root=root).problems == ()


def test_bearer_without_a_token_and_a_name_is_refused() -> None:
    (problem,) = judged(CALL % "{type: bearer}").problems
    assert (problem.code, problem.message) == ("E104", "auth of type bearer needs 'token'")


@pytest.mark.parametrize("kind", ["bearer", "httpBearerAuth", "basic", "api_key", "oauth2"])
def test_a_name_beside_a_type_is_an_older_form_of_the_name(kind: str) -> None:
    root = "keychain:\n  - {name: shop, kind: oauth2, auth: shop_app}\n"
    (problem,) = judged(CALL % f"{{type: {kind}, name: shop}}", root=root).problems
    assert (problem.code, problem.is_error, problem.replacement) == ("W902", False, "auth: shop")
    strict = judged(CALL % f"{{type: {kind}, name: shop}}", root=root, level=Level.STRICT)
    assert strict.playbook is None


@pytest.mark.parametrize(
    ("auth", "message"),
    [
        ("{type: bearer, name: [a]}", "expected the name of a credential or keychain entry"),
        ("{type: bearer, name: ''}", "expected the name of a credential or keychain entry"),
        ("{type: bearer, nme: shop}", "'nme'"),
    ],
)
def test_what_is_no_name_is_refused(auth: str, message: str) -> None:
    problems = judged(CALL % auth).problems
    assert any(problem.is_error and message in problem.message for problem in problems), problems
