"""Outputs, tools, cancellation, errors, limits and older forms, as the language has them."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.support import tool_site
from tests.support.examining import LANGUAGE, Case, Examiner, cases
from tests.support.servers import wait_until
from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.timeout(300)

SECTIONS = ("output", "tools", "errors", "limits", "older", "inspection", "promises")
SETTINGS = ("--no-s3", "--set", "WORKER_SHELL_ALLOWED=true")
CALLED = LANGUAGE / "tools" / "called"
PATIENCE_S = 120.0


class Canceller(Examiner):
    """Cancels each execution once step `a` is at work."""

    def wait(self, execution_id: str) -> Any:
        wait_until(
            lambda: any(
                (item["event_type"], item["node_name"]) == ("command.started", "a")
                for item in self.events(execution_id)
            ),
            timeout_s=PATIENCE_S,
            what="step a is at work",
        )
        answer = self.client.post(
            f"/api/executions/{execution_id}/cancel", json={"reason": "enough"}
        )
        assert answer.status_code == 202, answer.text
        return super().wait(execution_id)


def credentials(stack: Stack) -> list[dict[str, Any]]:
    """What the playbooks name."""
    nats = urlsplit(stack.url("nats"))
    bus = {"url": f"nats://{nats.hostname}:{nats.port}"}
    bus |= {"user": nats.username or "", "password": nats.password or ""}
    pair = {"username": "ann", "password": "secretword"}
    key = {"header": "X-Key", "value": "key-1234567890abcdef"}
    return [
        {"name": "main_db", "type": "postgres", "data": {"dsn": stack.url("target")}},
        {"name": "bus", "type": "nats", "data": bus},
        {"name": "shop_token", "type": "bearer", "data": {"token": "shop-token-1234567890"}},
        {"name": "shop_basic", "type": "basic", "data": pair},
        {"name": "shop_key", "type": "api_key", "data": key},
    ]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stack, str]]:
    """One stack and one site for all the cases, their credentials, and what others call."""
    folder = tmp_path_factory.mktemp("language") / "stack"
    with tool_site.serving() as site, running_stack(folder, *SETTINGS) as stack:
        with Examiner(stack).client as client:
            for credential in credentials(stack):
                answer = client.post("/api/credentials", json=credential)
                assert answer.status_code == 200, answer.text
            for playbook in sorted(CALLED.glob("*.yaml")):
                registered = client.post("/api/catalog/register", content=playbook.read_bytes())
                assert registered.status_code == 200, registered.text
        yield stack, site.url


@pytest.fixture(scope="module")
def examiner(places: tuple[Stack, str]) -> Iterator[Examiner]:
    stack, site = places
    found = Examiner(stack, SITE=site)
    with found.client:
        yield found


@pytest.fixture(scope="module")
def canceller(places: tuple[Stack, str]) -> Iterator[Examiner]:
    stack, site = places
    found = Canceller(stack, SITE=site)
    with found.client:
        yield found


@pytest.mark.parametrize("case", cases(*SECTIONS))
def test_a_playbook_does_what_the_language_page_says_of_tools(
    examiner: Examiner, case: Case
) -> None:
    examiner.examine(case)


@pytest.mark.parametrize("case", cases("cancellation"))
def test_a_cancelled_playbook_stops_wherever_it_is(canceller: Examiner, case: Case) -> None:
    canceller.examine(case)
