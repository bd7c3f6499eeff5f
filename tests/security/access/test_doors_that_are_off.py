"""Authentication is off on loopback alone; a planner that lets nobody sign in does not start."""

from pathlib import Path

import pytest
from tests.support.api import ApiWorld
from tests.support.identities import open_client
from tests.support.inprocess import a_system
from tests.support.storage import ORGANIZATION, TENANT

from noetl_chassis.settings import SettingsError
from noetl_cli.local import system
from noetl_planner import wiring
from noetl_planner.api.app import create_app
from noetl_planner.identity.authenticator import NobodyCanSignIn
from noetl_planner.settings import check_auth, parse_group_roles

OFF = {"NOETL_AUTH": "off-on-loopback"}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "noetl.example.org", ""])  # noqa: S104 - refused
def test_off_is_refused_on_an_address_that_others_reach(tmp_path: Path, host: str) -> None:
    config = system.load_settings({**OFF, "NOETL_PLANNER_HTTP_HOST": host or "0"}, tmp_path)
    with pytest.raises(SettingsError, match="no loopback address"):
        check_auth(config.planner)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_off_is_taken_on_loopback(tmp_path: Path, host: str) -> None:
    config = system.load_settings({**OFF, "NOETL_PLANNER_HTTP_HOST": host}, tmp_path)
    check_auth(config.planner)
    assert config.planner.auth == "off-on-loopback"


@pytest.mark.parametrize("word", ["off", "false", "no", "OFF-ON-LOOPBACK", "disabled"])
def test_no_other_word_switches_it_off(tmp_path: Path, word: str) -> None:
    with pytest.raises(SettingsError, match="AUTH"):
        system.load_settings({"NOETL_AUTH": word}, tmp_path)


@pytest.mark.parametrize("digest", ["owner", "A" * 64, "a" * 63, "owner_token"])
def test_a_token_is_not_taken_for_its_digest(tmp_path: Path, digest: str) -> None:
    with pytest.raises(SettingsError, match="OWNER_TOKEN_SHA256"):
        system.load_settings({"NOETL_PLANNER_OWNER_TOKEN_SHA256": digest}, tmp_path)


def test_roles_of_groups_are_read_and_refused(tmp_path: Path) -> None:
    def load(text: str) -> dict[str, str]:
        config = system.load_settings({"NOETL_PLANNER_GROUP_ROLES": text}, tmp_path)
        return {group: str(role) for group, role in parse_group_roles(config.planner).items()}

    assert load("data-team:author, urn:x:ops:operator") == {
        "data-team": "author",
        "urn:x:ops": "operator",
    }
    with pytest.raises(SettingsError, match="did you mean 'author'"):
        load("data-team:autor")
    with pytest.raises(SettingsError, match="names no group"):
        load(":author")


async def test_nobody_can_sign_in_is_said_at_the_start(tmp_path: Path) -> None:
    async with a_system(tmp_path, NOETL_AUTH="on") as opened:
        config = opened.configs.planner
        with pytest.raises(NobodyCanSignIn, match="NOETL_PLANNER_OWNER_TOKEN_SHA256"):
            await wiring.check_sign_in(opened.adapters, config)


@pytest.mark.parametrize("header", ["X-NoETL-Tenant", "X-NoETL-Organization"])
async def test_nobody_in_particular_acts_in_no_other_place(header: str) -> None:
    app = create_app(ApiWorld().services())
    async with open_client(app, **{header: "other"}) as client:
        answer = await client.get("/api/catalog")
    assert (answer.status_code, answer.json()["code"]) == (403, "authentication_off")
    assert "noetl key owner" in answer.json()["hint"]
    own = {"X-NoETL-Tenant": TENANT, "X-NoETL-Organization": ORGANIZATION}
    async with open_client(app, **own) as client:
        assert (await client.get("/api/catalog")).status_code == 200
