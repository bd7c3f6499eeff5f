"""Credentials of type `nats`: a user's JWT and seed at a real server, and what cannot be used."""

import secrets
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nkeys
import pytest
from msgspec import Struct
from tests.support.calls import call_of
from tests.support.servers import NatsServer
from tests.support.working import Bench, bench

from noetl_cli.stack.processes import loopback
from noetl_cli.stack.processes.process_spec import HttpProbe
from noetl_cli.stack.servers import nats
from noetl_contracts import codec
from noetl_worker.tools.calls.call import Outcome

UNLIMITED = dict.fromkeys(
    (
        *("subs", "data", "payload", "imports", "exports", "conn", "leaf"),
        *("mem_storage", "disk_storage", "streams", "consumer"),
    ),
    -1,
)
BEGUN = "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n"
SEED = "-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"


class Key(Struct, frozen=True):
    """A key pair of NATS: an operator's, an account's, a user's."""

    pair: Any
    seed: str

    @property
    def public(self) -> str:
        public_key: bytes = self.pair.public_key
        return public_key.decode()


class Secured(Struct, frozen=True):
    """A server that knows its users by their JWTs, and a user's credentials file."""

    url: str
    creds: str


def a_key(prefix: int) -> Key:
    seed = nkeys.encode_seed(secrets.token_bytes(32), prefix)
    return Key(pair=nkeys.from_seed(bytearray(seed)), seed=bytes(seed).decode())


def jwt_of(subject: Key, *, issuer: Key, name: str, **claims: Any) -> str:
    """Sign claims as `nsc` does: https://docs.nats.io/running-a-nats-service/configuration/securing_nats/auth_intro/jwt"""
    body = {"jti": secrets.token_hex(8), "iat": 1, "iss": issuer.public, "sub": subject.public}
    parts = [
        {"typ": "JWT", "alg": "ed25519-nkey"},
        {**body, "name": name, "nats": {"version": 2, **claims}},
    ]
    text = ".".join(encoded(codec.encode_json(part)) for part in parts)
    return f"{text}.{encoded(issuer.pair.sign(text.encode()))}"


def encoded(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    home = tmp_path_factory.mktemp("operator")
    chosen = loopback.choose_ports(["nats", "monitor"], before={})
    server = nats.describe_nats(
        home=home, port=chosen["nats"], password_by_user={nats.MONITOR: "nobody"}
    )
    nats.prepare_nats(server)
    creds = with_operator(server.directory / "nats.conf", server, monitor_port=chosen["monitor"])
    probe = HttpProbe(url=f"http://127.0.0.1:{chosen['monitor']}/healthz")
    nats_server = NatsServer(server, home=home, probe=probe)
    try:
        nats_server.start()
        yield Secured(url=f"nats://127.0.0.1:{nats_server.port}", creds=creds)
    finally:
        nats_server.kill()


def with_operator(path: Path, server: nats.NatsServer, *, monitor_port: int) -> str:
    """Write the configuration of a server with an operator; return a user's credentials file."""
    operator = a_key(nkeys.PREFIX_BYTE_OPERATOR)
    system, account = a_key(nkeys.PREFIX_BYTE_ACCOUNT), a_key(nkeys.PREFIX_BYTE_ACCOUNT)
    user = a_key(nkeys.PREFIX_BYTE_USER)
    limits = {"limits": {**UNLIMITED, "wildcards": True}}
    bare = {"limits": {**UNLIMITED, "wildcards": True, "mem_storage": 0, "disk_storage": 0}}
    jwts = {
        item.public: jwt_of(item, issuer=operator, name=name, type="account", **more)
        for item, name, more in ((system, "SYS", bare), (account, "tasks", limits))
    }
    preloaded = "\n".join(f"  {public}: {jwt}" for public, jwt in jwts.items())
    path.write_text(f"""\
server_name: "secured"
listen: "127.0.0.1:{server.port}"
http: "127.0.0.1:{monitor_port}"
jetstream {{ store_dir: "{server.store_folder}" }}
operator: {jwt_of(operator, issuer=operator, name="owner", type="operator")}
system_account: {system.public}
resolver: MEMORY
resolver_preload: {{
{preloaded}
}}
""")
    jwt = jwt_of(user, issuer=account, name="task", type="user", subs=-1, data=-1, payload=-1)
    return f"{BEGUN.format(jwt=jwt)}\n*** keep it\n\n{SEED.format(seed=user.seed)}"


async def put(worker: Bench, fields: dict[str, Any]) -> Outcome:
    await worker.put_credential("bus", fields, kind="nats")
    given = {"operation": "kv_put", "bucket": "b", "key": "k"}
    return await worker.tools.run(call_of("nats", given, auth="bus", value="there", timeout_s=60))


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
async def test_a_credentials_file_opens_a_server_that_knows_users_by_their_jwt(
    secured: Secured, ending: str
) -> None:
    async with bench() as worker:
        creds = secured.creds.replace("\n", ending)
        found = await put(worker, {"url": secured.url, "creds": creds})
        assert found.error is None, found.error


async def test_a_seed_of_another_user_is_refused(secured: Secured) -> None:
    another = a_key(nkeys.PREFIX_BYTE_USER)
    begun, _, _ = secured.creds.partition("-----BEGIN USER")
    async with bench() as worker:
        found = await put(
            worker, {"url": secured.url, "creds": begun + SEED.format(seed=another.seed)}
        )
    assert found.error is not None
    assert (found.error.kind, found.error.retryable) == ("auth", False)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("creds", item) for item in (5, "rubbish", BEGUN.format(jwt="a.b.c"))],
        ("creds", SEED.format(seed="SUAAA")),
        ("creds", BEGUN.format(jwt="a.b.c") + SEED.format(seed="SUAAA")),
        *[("url", item) for item in ("", 5, "::", "nats://", "nats://[a", "nats://h:s3cret")],
        *[("url", item) for item in ("nats://127.0.0.1:99999", "http://127.0.0.1:4222")],
        ("user", {"name": "ann"}),
        ("token", ["t"]),
    ],
)
async def test_a_credential_that_cannot_be_used_is_named_and_not_tried_again(
    field: str, value: Any
) -> None:
    async with bench() as worker:
        found = await put(worker, {"url": "nats://127.0.0.1:9", field: value})
    assert found.error is not None
    assert (found.error.kind, found.error.retryable) == ("config", False)
    assert "'bus'" in found.error.message
    assert f"'{field}'" in found.error.message
    assert "s3cret" not in found.error.message
