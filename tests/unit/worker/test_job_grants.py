"""What executors of a job may open: whose keys they are, how narrow, and how they are renewed."""

import asyncio
import os
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import pytest
from msgspec import structs
from tests.support.calls import site
from tests.support.polling import eventually
from tests.support.working import KEY, ORGANIZATION, TENANT

from noetl_chassis.clock import SystemClock
from noetl_chassis.seals.credential_seal import CredentialSealer
from noetl_contracts import codec, credentials
from noetl_storage.payloads.memory import MemoryPayloads
from noetl_worker.domain.failures import ToolFailure
from noetl_worker.domain.secret_mask import SecretMask
from noetl_worker.keychain.credential_vault import CredentialVault
from noetl_worker.payloads.payload_retry import retry_store_call
from noetl_worker.spark.grants import job_grant, launch_environ, store_policy
from noetl_worker.spark.grants.job_grant import (
    GrantRenewal,
    GrantUnusable,
    JobGrant,
    StoreKeys,
)
from noetl_worker.spark.grants.payload_scope import StoreLogin
from noetl_worker.spark.grants.store_policy import PrefixAccess
from noetl_worker.spark.grants.temporary_keys import (
    NoTemporaryKeys,
    TemporaryKeys,
    request_keys,
)
from noetl_worker.tools.spark.grant_maker import GrantMaker, GrantNeed, GrantOptions

WORD = "word"
ACCOUNT = {"endpoint": "http://s3.test", "access_key": "own", "secret_key": "own-secret"}
NEED = GrantNeed(
    credential="lake", access=PrefixAccess(bucket="lake", key="orders", is_written=True)
)
LOGIN = StoreLogin(url="s3://noetl?endpoint=http://s3.test", access_key="w", secret_key=WORD)


class Asked:
    """A store that gives keys, or none; it notes the policies that it was given."""

    def __init__(self, *, gives: bool = True) -> None:
        self.policies: list[dict[str, Any]] = []
        self._gives = gives

    def __call__(self, account: Any, policy: str, *, lifetime_s: int) -> TemporaryKeys:
        self.policies.append(codec.decode_json(policy.encode()))
        if not self._gives:
            raise NoTemporaryKeys("the server answers 405 to who asks for temporary keys")
        ends_at = datetime.now(UTC) + timedelta(seconds=lifetime_s)
        return TemporaryKeys(
            access_key=f"of {account['access_key']}",
            secret_key=WORD,
            session_token=str(len(self.policies)),
            ends_at=ends_at.timestamp(),
        )


async def make_maker(folder: Path, asked: Asked, **options: Any) -> GrantMaker:
    """A maker whose organization has one credential."""
    payloads = MemoryPayloads()
    owner = {"tenant_id": TENANT, "organization_id": ORGANIZATION}
    sealed = CredentialSealer(KEY).seal_credential(
        ACCOUNT, name="lake", version=1, kind="s3", **owner
    )
    await payloads.put_named(
        credentials.build_object_name("lake", 1), codec.encode_json(sealed), **owner
    )
    vault = CredentialVault(
        objects=payloads,
        ask_again=retry_store_call,
        sealer=CredentialSealer(KEY),
        mask=SecretMask(),
        clock=SystemClock(),
    )
    return GrantMaker(
        vault=vault,
        options=GrantOptions(**{"store": LOGIN, "folder": folder, "is_near": True, **options}),
        clock=SystemClock(),
        ask_for_keys=asked,
    )


def test_a_grant_has_narrow_keys_of_the_folders_that_the_job_names(tmp_path: Path) -> None:
    asked = Asked()

    async def hold() -> JobGrant:
        maker = await make_maker(tmp_path, asked)
        async with maker.hold_grant([NEED], site()), maker.hold_grant([NEED], site()) as grant:
            return grant

    grant = asyncio.run(hold())
    assert grant.accounts["lake"]["access_key"] == "of own"
    assert grant.store == StoreKeys(access_key="of w", secret_key=WORD, session_token=f"{2}")
    dataset, payloads = asked.policies
    assert dataset["Statement"][0]["Resource"] == [
        "arn:aws:s3:::lake/orders",
        "arn:aws:s3:::lake/orders/*",
    ]
    written = str(payloads["Statement"])
    assert "/named/rejects/*" in written
    assert "credentials" not in written
    assert WORD not in repr(grant)


@pytest.mark.parametrize("login", [LOGIN, StoreLogin(url="file:///payloads")])
def test_a_store_without_narrow_keys_is_refused_where_none_others_may_be(
    tmp_path: Path, login: StoreLogin
) -> None:
    async def hold(mode: str) -> JobGrant:
        maker = await make_maker(tmp_path, Asked(gives=False), mode=mode, store=login)
        async with maker.hold_grant([NEED], site()) as grant:
            return grant

    grant = asyncio.run(hold("auto"))
    assert grant.accounts["lake"]["access_key"] == "own"
    assert grant.renewal is None
    with pytest.raises(ToolFailure) as refused:
        asyncio.run(hold("scoped"))
    assert refused.value.error.kind == "config"
    assert "set NOETL_WORKER_SPARK_KEYS=auto" in refused.value.error.message


def test_executors_find_renewed_keys_before_theirs_end(tmp_path: Path) -> None:
    async def hold() -> None:
        # At once it is time for the next keys.
        maker = await make_maker(tmp_path, Asked(), lifetime_s=1)
        async with maker.hold_grant([NEED], site()) as grant:
            assert grant.renewal is not None
            path = Path(grant.renewal.place)

            await eventually(partial(asyncio.to_thread, path.exists))
            later = job_grant.find_current_grant(grant, grant.ends_at + 1)
            assert later.ends_at > grant.ends_at
            assert later.accounts["lake"]["session_token"] != str(1)

    asyncio.run(hold())
    assert not list(tmp_path.iterdir())


def test_keys_that_ended_and_have_no_others_are_refused(tmp_path: Path) -> None:
    renewal = GrantRenewal(place=str(tmp_path / "next"), key=os.urandom(job_grant.KEY_BYTES))
    grant = JobGrant(ends_at=100.0, renew_at=50.0, renewal=renewal)
    assert job_grant.find_current_grant(grant, 10.0) is grant
    assert job_grant.find_current_grant(grant, 60.0) is grant
    with pytest.raises(GrantUnusable, match="have ended"):
        job_grant.find_current_grant(grant, 101.0)
    sealed = job_grant.seal_grant(
        structs.replace(grant, ends_at=200.0, renew_at=150.0), renewal.key
    )
    (tmp_path / "next").write_bytes(sealed[:-1] + bytes([sealed[-1] ^ 1]))
    with pytest.raises(GrantUnusable):
        job_grant.find_current_grant(grant, 101.0)
    (tmp_path / "next").write_bytes(sealed)
    assert job_grant.find_current_grant(grant, 101.0).ends_at == 200.0


def test_a_policy_of_many_folders_is_that_of_their_buckets() -> None:
    folders = [PrefixAccess(bucket="lake", key=f"orders/{number:040}") for number in range(40)]
    policy = store_policy.build_policy(folders)
    assert len(policy) < 2048
    read, listed = msgspec.json.decode(policy)["Statement"]
    assert read["Resource"] == ["arn:aws:s3:::lake/*"]
    assert "Condition" not in listed


def test_spark_sees_no_variable_of_the_worker() -> None:
    environ = {
        "PATH": "/bin",
        "NOETL_WORKER_SECRET_KEY": "k",
        "NOETL_WORKER_PAYLOAD_ACCESS_KEY": "a",
        "AWS_SECRET_ACCESS_KEY": "s",
    }
    assert launch_environ.build_shown_environ(environ) == {"PATH": "/bin"}
    del environ["NOETL_WORKER_PAYLOAD_ACCESS_KEY"]
    assert "AWS_SECRET_ACCESS_KEY" in launch_environ.build_shown_environ(environ)


@pytest.mark.parametrize("body", [b"<html>a page</html>", b"405 method not allowed", b"{}", b""])
@pytest.mark.parametrize("status", [200, 403, 405])
def test_a_store_that_answers_with_no_keys_gives_none(status: int, body: bytes) -> None:
    class Store(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Store) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        account = {"endpoint": endpoint, "access_key": "a", "secret_key": "b"}
        with pytest.raises(NoTemporaryKeys):
            request_keys(account, "{}", lifetime_s=900)
        server.shutdown()
