"""Requests that libcurl signs and sends: what S3 takes, refuses, and what boto3 must do."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import boto3
import botocore.auth
import pytest
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from tests.support.servers import S3Server
from tests.support.storage import ORGANIZATION, TENANT

from noetl_storage.payloads.factory import open_payloads
from noetl_storage.payloads.s3 import BYTES_MAX, PlainRequests, SigningKeys
from noetl_storage.ports.errors import StorageMisconfigured

PLACE: dict[str, Any] = {"tenant_id": TENANT, "organization_id": ORGANIZATION}
BUCKET = "noetl"


def puts_to(s3: S3Server, **changes: str) -> PlainRequests:
    keys = {"access_key": s3.access_key, "secret_key": s3.secret_key} | changes
    return PlainRequests(
        find_endpoint=lambda: s3.endpoint,
        region="us-east-1",
        bucket=BUCKET,
        keys=lambda: SigningKeys(**keys),
    )


def held(s3: S3Server, key: str) -> dict[str, Any]:
    client = boto3.session.Session(s3.access_key, s3.secret_key).client(
        "s3", endpoint_url=s3.endpoint, region_name="us-east-1"
    )
    found: dict[str, Any] = client.get_object(Bucket=BUCKET, Key=key)
    return found


@pytest.mark.parametrize("data", [b"", b"\0\r\n\0", b"x" * 200_000], ids=len)
def test_an_object_arrives_as_it_is(s3: S3Server, data: bytes) -> None:
    key = f"puts/{len(data)}"
    assert puts_to(s3).put_small(key, data, media_type="application/json", is_new=False)
    found = held(s3, key)
    assert found["Body"].read() == data
    assert found["ContentType"] == "application/json"


def test_an_object_is_written_once(s3: S3Server) -> None:
    puts = puts_to(s3)
    assert puts.put_small("puts/once", b"first", is_new=True)
    with pytest.raises(FileExistsError):
        puts.put_small("puts/once", b"second", is_new=True)
    assert held(s3, "puts/once")["Body"].read() == b"first"


@pytest.mark.parametrize("key", ["a b", "ü", "a//b", "a/../b", "./a", "a+b", "/a", "a/"])
def test_a_name_that_clients_sign_differently_is_left_to_boto3(s3: S3Server, key: str) -> None:
    assert not puts_to(s3).put_small(key, b"x", is_new=False)


def test_what_is_large_refused_or_unheard_is_left_to_boto3(s3: S3Server) -> None:
    assert not puts_to(s3).put_small("puts/large", b"x" * (BYTES_MAX + 1), is_new=False)
    assert not puts_to(s3, secret_key="wrong").put_small("puts/refused", b"x", is_new=True)  # noqa: S106 - a made-up one
    nowhere = PlainRequests(
        find_endpoint=lambda: "http://127.0.0.1:9",
        region="us-east-1",
        bucket=BUCKET,
        keys=lambda: SigningKeys(access_key="a", secret_key="b"),  # noqa: S106 - a made-up one
    )
    assert not nowhere.put_small("puts/unheard", b"x", is_new=False)


@pytest.mark.parametrize("data", [b"", b"\0\r\n\0", b"x" * 9_000_000], ids=len)
def test_an_object_is_read_found_and_removed(s3: S3Server, data: bytes) -> None:
    plain, key = puts_to(s3), f"plain/{len(data)}"
    client = boto3.session.Session(s3.access_key, s3.secret_key).client(
        "s3", endpoint_url=s3.endpoint, region_name="us-east-1"
    )
    client.put_object(Bucket=BUCKET, Key=key, Body=data)
    about = client.head_object(Bucket=BUCKET, Key=key)
    assert plain.read_object(key) == data
    found = plain.find_object(key)
    assert found is not None
    assert (found.stored_bytes, found.modified_at) == (len(data), about["LastModified"])
    assert plain.delete_object(key)
    assert plain.delete_object(key)
    assert plain.read_object(key) is None
    with pytest.raises(KeyError):
        plain.find_object(key)


def test_a_refused_request_is_left_to_boto3(s3: S3Server) -> None:
    plain = puts_to(s3, secret_key="wrong")  # noqa: S106 - a made-up one
    assert puts_to(s3).put_small("plain/refused", b"x", is_new=False)
    assert plain.read_object("plain/refused") is None
    assert plain.find_object("plain/refused") is None
    assert not plain.delete_object("plain/refused")
    assert held(s3, "plain/refused")["Body"].read() == b"x"


def test_a_store_that_answers_is_used_without_boto3(s3: S3Server) -> None:
    """The health check, and the wait for a server, load no client of 30 MiB."""
    code = f"""if True:
        import asyncio, sys
        from noetl_storage.payloads.factory import open_payloads
        async def use():
            login = {{"access_key": {s3.access_key!r}, "secret_key": {s3.secret_key!r}}}
            async with open_payloads({s3.payload_url!r}, connect_s=10, **login) as store:
                await store.check_write()
        asyncio.run(use())
        print(sorted({{"boto3", "botocore"}} & sys.modules.keys()))
    """
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


async def test_a_store_with_a_wrong_key_says_so(s3: S3Server) -> None:
    async with open_payloads(s3.payload_url, access_key="nobody", secret_key="x") as store:  # noqa: S106 - a made-up one
        with pytest.raises(StorageMisconfigured, match="refused"):
            await store.put_payload(b"data", **PLACE, media_type="text/plain")


@pytest.fixture
def listener() -> Iterator[tuple[str, list[Any]]]:
    """A server that keeps the requests it gets."""
    seen: list[Any] = []

    class Keep(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            seen.append((self.path, dict(self.headers.items()), body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Keep)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", seen
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("token", [None, "a/token+of=a role"], ids=["user", "role"])
def test_a_request_is_signed_as_botocore_signs_it(
    listener: tuple[str, list[Any]], token: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint, seen = listener
    keys = SigningKeys(access_key="AKIDEXAMPLE", secret_key="se:cr/et+", token=token)  # noqa: S106 - a made-up one
    puts = PlainRequests(
        find_endpoint=lambda: endpoint, region="eu-west-1", bucket="b", keys=lambda: keys
    )
    assert puts.put_small("named/frames/1/a-b_c.d~e", b"\0rows", is_new=True)
    ((path, headers, body),) = seen
    assert path == "/b/named/frames/1/a-b_c.d~e"
    assert body == b"\0rows"
    assert headers["If-None-Match"] == "*"
    assert headers.get("X-Amz-Security-Token") == token

    lower = {name.lower(): value for name, value in headers.items()}
    authorization = lower.pop("authorization")
    signed = authorization.partition("SignedHeaders=")[2].partition(",")[0].split(";")
    assert {"host", "x-amz-date", "x-amz-content-sha256"} <= set(signed)
    assert token is None or "x-amz-security-token" in signed
    at = datetime.strptime(lower["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda *_, **__: at)
    again = AWSRequest(
        "PUT",
        endpoint + path,
        data=body,
        headers={name: lower[name] for name in signed if not name.startswith("x-amz-")},
    )
    signer = botocore.auth.S3SigV4Auth(
        Credentials(keys.access_key, keys.secret_key, token), "s3", "eu-west-1"
    )
    signer.add_auth(again)
    assert authorization.replace(" ", "") == again.headers["Authorization"].replace(" ", "")
