"""What the planner accepts as an identity provider, and what it refuses at its start."""

import pytest
from tests.support.signing_in import a_settings

from noetl_chassis.settings import SettingsError
from noetl_planner.settings import list_own_hosts, parse_oidc

ISSUER = "https://id.example.org"
PUBLIC = "https://noetl.example.org"


def test_without_an_issuer_nobody_signs_in() -> None:
    assert parse_oidc(a_settings("", "")) is None


def test_a_provider_is_named_once() -> None:
    oidc = parse_oidc(a_settings(ISSUER, f"{PUBLIC}/", oidc_cli_client_id="", oidc_scopes=()))
    assert oidc is not None
    assert (oidc.public_url, oidc.is_public_url_secure) == (PUBLIC, True)
    assert (oidc.cli_client_id, oidc.scopes) == (oidc.client_id, ("openid",))


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"oidc_client_id": ""}, "OIDC_CLIENT_ID"),
        ({"oidc_issuer": "http://id.example.org"}, "OIDC_ISSUER"),
        ({"oidc_issuer": "id.example.org"}, "OIDC_ISSUER"),
        ({"oidc_issuer": "http://127.0.0.1.evil.example.org"}, "OIDC_ISSUER"),
        ({"oidc_issuer": "http://127.evil.example.org"}, "OIDC_ISSUER"),
        ({"public_url": "http://noetl.example.org"}, "PUBLIC_URL"),
        ({"public_url": "http://localhost@evil.example.org"}, "PUBLIC_URL"),
        ({"oidc_token_issuers": ("http://k8s.example.org",)}, "OIDC_TOKEN_ISSUERS"),
        ({"oidc_token_issuers": (ISSUER,), "oidc_audiences": ()}, "OIDC_AUDIENCES"),
    ],
)
def test_what_would_sign_in_others_is_refused(changes: dict[str, object], name: str) -> None:
    values = {"oidc_issuer": ISSUER, "public_url": PUBLIC, **changes}
    issuer, public_url = str(values.pop("oidc_issuer")), str(values.pop("public_url"))
    with pytest.raises(SettingsError, match=f"NOETL_PLANNER_{name}"):
        parse_oidc(a_settings(issuer, public_url, **values))


def test_the_public_name_is_an_own_host() -> None:
    config = a_settings(ISSUER, "https://NoETL.example.org:8443", http_hosts=("other.example.org",))
    assert list_own_hosts(config) == ("other.example.org", "noetl.example.org")
