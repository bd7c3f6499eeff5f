"""A device's sign-in is bound to who began it, where the provider says that it can be."""

from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from tests.support.canned_api import CannedApi, serve_answers

from noetl_chassis import identity
from noetl_cli.identity import person_sign_in, provider_client, token_store
from noetl_cli.identity.person_sign_in import ServerSignIn

DEVICE = {
    "device_code": "d",
    "user_code": "ABCD",
    "verification_uri": "http://127.0.0.1:1/device",
    "interval": 0.1,
}


@pytest.fixture(autouse=True)
def without_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep tokens in the folder of the test, whatever keyring this machine has."""
    monkeypatch.setattr(token_store, "find_spec", lambda _: None)


def sign_in(methods: dict[str, Any], folder: Path) -> list[dict[str, list[str]]]:
    """Sign in by a device's code; return the forms that the provider was sent."""
    answers: dict[str, tuple[int, Any]] = {}
    with serve_answers(answers) as provider:
        answers["GET /.well-known/openid-configuration"] = (200, describe(provider, methods))
        answers["POST /device"] = (200, DEVICE)
        answers["POST /token"] = (200, {"access_token": "a", "id_token": "i", "expires_in": 60})
        person_sign_in.sign_person_in(
            provider.url,
            ServerSignIn(
                issuer=provider.url,
                client_id="cli",
                scopes=["openid"],
                token=provider_client.ID_TOKEN,
            ),
            with_browser=False,
            environ={"HOME": str(folder), "XDG_CONFIG_HOME": str(folder)},
        )
        return [parse_qs(body.decode()) for body in provider.bodies]


def describe(provider: CannedApi, methods: dict[str, Any]) -> dict[str, Any]:
    return {
        "issuer": provider.url,
        "authorization_endpoint": f"{provider.url}/auth",
        "token_endpoint": f"{provider.url}/token",
        "device_authorization_endpoint": f"{provider.url}/device",
        **methods,
    }


def test_the_token_is_asked_for_with_what_only_the_beginner_knows(tmp_path: Path) -> None:
    offered = {"code_challenge_methods_supported": ["plain", "S256"]}
    begun, asked = sign_in(offered, tmp_path)
    assert begun["code_challenge_method"] == ["S256"]
    (verifier,) = asked["code_verifier"]
    assert begun["code_challenge"] == [identity.compute_challenge(verifier)]
    assert 43 <= len(verifier) <= 128
    assert "code_verifier" not in begun


@pytest.mark.parametrize("methods", [{}, {"code_challenge_methods_supported": ["plain"]}])
def test_a_provider_that_offers_no_digest_is_sent_no_challenge(
    methods: dict[str, Any], tmp_path: Path
) -> None:
    for form in sign_in(methods, tmp_path):
        assert not form.keys() & {"code_challenge", "code_challenge_method", "code_verifier"}
