"""Where the http tool may not go, whatever an address looks like or a name resolves to."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.support.calls import call_of
from tests.support.scripted import Script, says, script, sends
from tests.support.working import Bench, bench

from noetl_chassis.clock import SystemClock
from noetl_chassis.seals.credential_seal import CredentialSealer
from noetl_storage.payloads.memory import MemoryPayloads
from noetl_worker.domain import egress
from noetl_worker.domain.secret_mask import SecretMask
from noetl_worker.keychain.credential_vault import CredentialVault
from noetl_worker.payloads.payload_retry import retry_store_call
from noetl_worker.tools.calls.call import Outcome
from noetl_worker.tools.http.http_tool import HttpLimits, HttpTool, open_http

KEY = "A" * 43 + "="


class Names:
    """A name server whose answers a test writes down; the last one is given for ever."""

    def __init__(self, **answers: list[list[str]]) -> None:
        self.answers = {name.replace("_", "."): list(item) for name, item in answers.items()}
        self.asked: list[str] = []

    def __call__(self, host: str) -> list[str]:
        self.asked.append(host)
        answer = self.answers[host.rstrip(".").lower()]
        return answer[0] if len(answer) == 1 else answer.pop(0)


@asynccontextmanager
async def tool(names: Names, *allowed: str) -> AsyncIterator[HttpTool]:
    clock, payloads = SystemClock(), MemoryPayloads()
    vault = CredentialVault(
        objects=payloads,
        ask_again=retry_store_call,
        sealer=CredentialSealer(KEY),
        mask=SecretMask(),
        clock=clock,
    )
    limits = HttpLimits(allowances=tuple(egress.parse_allowance(entry) for entry in allowed))
    async with open_http(
        limits=limits, vault=vault, payloads=payloads, clock=clock, names=names
    ) as opened:
        yield opened


async def get(opened: HttpTool | Bench, url: str) -> Outcome:
    runner = opened.tools if isinstance(opened, Bench) else opened
    return await runner.run(call_of("http", {"url": url}, timeout_s=60))


def kind_of(outcome: Outcome) -> str | None:
    return None if outcome.error is None else outcome.error.kind


@pytest.fixture
async def server() -> AsyncIterator[Script]:
    async with script() as found:
        found.answers(says({"secret": 1}))
        yield found


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7f.1", "017700000001"),
        *("0177.0.0.1", "0", "0.0.0.0", "localhost", "LOCALHOST", "localhost.", "127.0.0.1."),  # noqa: S104 - addresses to refuse
        *("[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[0:0:0:0:0:ffff:127.0.0.1]"),
        *("[::127.0.0.1]", "[64:ff9b::7f00:1]", "[64:ff9b:1::1]", "[2002:7f00:1::]", "[fe80::1]"),
        *("[fec0::1]", "[fd00:ec2::254]", "[ff02::1]", "169.254.169.254", "169.254.170.2"),
        *("10.1.2.3", "172.16.0.1", "192.168.0.1", "100.64.0.1", "100.100.100.200", "224.0.0.1"),
        *("240.0.0.1", "255.255.255.255", "192.0.0.8", "198.18.0.1", "168.63.129.16"),
        *("user@127.0.0.1", "example.com@127.0.0.1", "①②⑦.0.0.1", "127。0。0。1"),
    ],
)
async def test_no_spelling_of_an_inner_address_gets_through(server: Script, host: str) -> None:
    port = server.url.rpartition(":")[2]
    async with bench(http_allow=("127.0.0.9",)) as worker:
        found = await get(worker, f"http://{host}:{port}/")
    assert kind_of(found) in {"config", "validation", "connection"}, found
    assert not server.seen


@pytest.mark.parametrize(
    "url",
    [
        *("gopher://127.0.0.1:6379/_x", "file:///etc/passwd", "ftp://x/", "dict://x:1/", "//x/"),
        *("http://", "http:///x", "http://:80/", "javascript:1", "unix:///run/x.sock"),
    ],
)
async def test_nothing_but_http_is_sent(url: str) -> None:
    async with bench() as worker:
        assert kind_of(await get(worker, url)) == "validation"


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "::1", "169.254.169.254", "10.0.0.5", "::ffff:10.0.0.5", "fd00:ec2::254"],
)
async def test_a_name_that_leads_inside_is_refused(server: Script, address: str) -> None:
    port = server.url.rpartition(":")[2]
    names = Names(evil_test=[[address]])
    async with tool(names) as opened:
        for host in ("evil.test", "evil.test.", "EVIL.test"):
            found = await get(opened, f"http://{host}:{port}/")
            assert kind_of(found) == "config", found
    assert names.asked
    assert not server.seen


async def test_a_name_that_changes_its_mind_is_held_to_its_first_answer(server: Script) -> None:
    """What was checked is what is connected to: nothing is resolved between the two."""
    port = server.url.rpartition(":")[2]
    # A public address that refuses at once does not exist; a network that is allowed stands in.
    names = Names(rebind_test=[["127.0.0.2"], ["127.0.0.1"]])
    async with tool(names, "127.0.0.2") as opened:
        first = await get(opened, f"http://rebind.test:{port}/")
        assert kind_of(first) == "connection", first
        assert names.asked == ["rebind.test"]
        again = await get(opened, f"http://rebind.test:{port}/")
        assert kind_of(again) in {"connection", "config"}
    assert not server.seen


async def test_of_several_addresses_only_the_allowed_are_tried(server: Script) -> None:
    port = server.url.rpartition(":")[2]
    names = Names(both_test=[["127.0.0.2", "127.0.0.1"]])
    async with tool(names, "127.0.0.2") as opened:
        assert kind_of(await get(opened, f"http://both.test:{port}/")) == "connection"
    assert not server.seen
    names = Names(both_test=[["127.0.0.2", "127.0.0.1"]])
    async with tool(names, "127.0.0.1") as opened:
        assert (await get(opened, f"http://both.test:{port}/")).data["body"] == {"secret": 1}


async def test_every_hop_of_a_redirect_is_checked(server: Script) -> None:
    port = server.url.rpartition(":")[2]
    names = Names(front_test=[["127.0.0.1"]], inner_test=[["169.254.169.254"]])
    async with tool(names, f"front.test:{port}") as opened:
        for target in (
            *("http://inner.test/latest", "http://169.254.169.254/", "http://[::1]/"),
            *("http://2130706433/", f"http://127.0.0.1:{port}/", "//169.254.169.254/"),
        ):
            server.answers(sends(b"", status=302, headers={"Location": target}))
            assert kind_of(await get(opened, f"http://front.test:{port}/")) == "config", target


async def test_an_allowance_is_for_its_host_and_port_alone(server: Script) -> None:
    port = server.url.rpartition(":")[2]
    names = Names(mine_test=[["127.0.0.1"]], other_test=[["127.0.0.1"]])
    async with tool(names, f"mine.test:{port}") as opened:
        assert kind_of(await get(opened, f"http://mine.test:{port}/")) is None
        assert kind_of(await get(opened, f"http://other.test:{port}/")) == "config"
        assert kind_of(await get(opened, "http://mine.test:1/")) == "config"


async def test_the_environment_names_no_proxy(
    server: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", server.url)
    monkeypatch.setenv("HTTP_PROXY", server.url)
    async with bench() as worker:
        assert kind_of(await get(worker, "http://127.0.0.1:9/")) == "connection"
    assert not server.seen
