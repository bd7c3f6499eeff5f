"""The platform's own servers on loopback answer nobody without a credential, and no http task."""

import socket
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest
from botocore.exceptions import ClientError
from tests.support.attempting import site_of
from tests.support.scripted import Script, says, script
from tests.support.servers import NatsServer, S3Server, nats_server, s3_server
from tests.support.working import bench

from noetl_cli.stack.home_folder.options import StackOptions
from noetl_cli.stack.processes import nats_requests
from noetl_cli.stack.supervision import service_addresses
from noetl_cli.stack.supervision.service_addresses import ServiceAddresses
from noetl_worker.tools.calls.call import Call, Outcome, Timeout

REFUSED = {401, 403, 404, 405}
# HTTP/2 begins with this line and a frame of settings; a server answers with its own.
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
SETTINGS_FRAME = 4
SPELLINGS = [
    *("127.0.0.1", "127.1", "127.0.0.2", "2130706433", "0x7f000001", "0177.0.0.1", "localhost"),
    *("LOCALHOST", "127.0.0.1.", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "0"),
    "0.0.0.0",  # noqa: S104 - an address to refuse
    *("[64:ff9b::7f00:1]", "[::]", "①②⑦.0.0.1", "user@127.0.0.1"),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("store")) as server:
        yield server


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with nats_server(tmp_path_factory.mktemp("broker")) as server:
        yield server


@pytest.mark.parametrize(
    ("port", "method", "path"),
    [
        ("s3-filer", "GET", "/"),
        ("s3-filer", "GET", "/buckets/noetl/?pretty=y"),
        ("s3-filer", "GET", "/buckets/noetl/.ready"),
        ("s3-filer", "POST", "/buckets/noetl/forged"),
        ("s3-filer", "DELETE", "/buckets/noetl/.ready"),
        ("s3-master", "GET", "/dir/assign"),
        ("s3-master", "GET", "/dir/lookup?volumeId=1"),
        ("s3-master", "GET", "/dir/status"),
        ("s3-master", "GET", "/vol/grow?count=1"),
        ("s3-master", "GET", "/col/delete?collection=noetl"),
        ("s3-master", "POST", "/submit"),
        ("s3-volume", "GET", "/1,01637037d6"),
        ("s3-volume", "POST", "/1,01637037d6"),
        ("s3-volume", "DELETE", "/1,01637037d6"),
        ("s3-volume", "GET", "/ui/index.html"),
        ("s3", "GET", "/noetl/.ready"),
        ("s3", "GET", "/"),
    ],
)
def test_the_payload_store_answers_nobody_without_a_credential(
    store: S3Server, port: str, method: str, path: str
) -> None:
    address = f"http://127.0.0.1:{store.server.ports[port]}{path}"
    answer = httpx.request(method, address, timeout=5, trust_env=False)
    assert answer.status_code in REFUSED, answer.text


@pytest.mark.parametrize("port", ["s3-filer-grpc", "s3-master-grpc", "s3-volume-grpc"])
def test_the_payload_stores_parts_talk_to_none_without_a_certificate(
    store: S3Server, port: str
) -> None:
    address = ("127.0.0.1", store.server.ports[port])
    with socket.create_connection(address, timeout=5) as opened:
        opened.sendall(HTTP2_PREFACE)
        try:
            answer = opened.recv(9)
        except OSError:
            answer = b""
    assert len(answer) < SETTINGS_FRAME or answer[3] != SETTINGS_FRAME


def test_the_payload_stores_keys_are_their_owners(store: S3Server) -> None:
    for name in ("security.toml", "grpc.key", "s3.json"):
        mode = stat.S_IMODE((store.server.directory / name).stat().st_mode)
        assert mode == 0o600, name


def test_keys_of_the_users_bucket_open_no_other(store: S3Server) -> None:
    keys = store.server.target_access_key, store.server.target_secret_key
    with closing(_open_client(store, *keys)) as client:
        client.put_object(Bucket="target", Key="folder/a", Body=b"mine")
        client.upload_part(
            Bucket="target",
            Key="b",
            UploadId=client.create_multipart_upload(Bucket="target", Key="b")["UploadId"],
            PartNumber=1,
            Body=b"part",
        )
        assert client.get_object(Bucket="target", Key="folder/a")["Body"].read() == b"mine"
        assert client.list_objects_v2(Bucket="target")["KeyCount"] == 1
        client.delete_object(Bucket="target", Key="folder/a")
        refused: list[tuple[Any, dict[str, Any]]] = [
            (client.get_object, {"Bucket": "noetl", "Key": ".ready"}),
            (client.put_object, {"Bucket": "noetl", "Key": "forged", "Body": b""}),
            (client.delete_object, {"Bucket": "noetl", "Key": ".ready"}),
            (client.list_objects_v2, {"Bucket": "noetl"}),
            (client.create_bucket, {"Bucket": "target2"}),
            (client.delete_bucket, {"Bucket": "target"}),
            (
                client.copy_object,
                {
                    "Bucket": "target",
                    "Key": "stolen",
                    "CopySource": {"Bucket": "noetl", "Key": ".ready"},
                },
            ),
        ]
        for ask_for, given in refused:
            with pytest.raises(ClientError, match="AccessDenied"):
                ask_for(**given)


def _open_client(store: S3Server, access_key: str, secret_key: str) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=store.server.endpoint,
        region_name="us-east-1",
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
    )


def test_a_broker_tells_of_itself_only_to_its_monitor(
    broker: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    configuration = (broker.server.directory / "nats.conf").read_text()
    assert "\nhttp" not in configuration
    health = nats_requests.request_health(broker.monitor_url)
    assert health is not None
    assert health.is_well
    report = nats_requests.request_report(broker.monitor_url, nats_requests.VARIABLES)
    assert report is not None
    assert report.data["jetstream"]["config"]["store_dir"]
    # Who may not ask gets no answer: a while is long enough to see that.
    monkeypatch.setattr(nats_requests, "_TIMEOUT_S", 1.0)
    for user in ("worker", "planner", "admin"):
        assert nats_requests.request_report(broker.url_for(user), nats_requests.HEALTH) is None


async def ask(worker: Any, url: str) -> Outcome:
    site = site_of()
    outcome: Outcome = await worker.tools.run(
        Call(
            site=site,
            task="t",
            kind="http",
            attempt=1,
            visit=1,
            fields={"url": url},
            input={},
            auth=None,
            timeout=Timeout(total=5),
        )
    )
    return outcome


@pytest.fixture
async def server() -> AsyncIterator[Script]:
    async with script() as found:
        found.answers(says({"secret": 1}))
        yield found


@pytest.mark.parametrize("host", SPELLINGS)
async def test_no_spelling_and_no_range_opens_a_port_of_the_platform(
    server: Script, host: str
) -> None:
    port = int(server.url.rpartition(":")[2])
    allowed = ("127.0.0.0/8", "::1", "::/0", "0.0.0.0/0", "localhost", "*", f"127.0.0.1:{port}")
    async with bench(http_allow=allowed, http_platform_ports=(port,)) as worker:
        found = await ask(worker, f"http://{host}:{port}/")
    assert found.error is not None
    assert not server.seen


async def test_a_redirect_leads_to_no_port_of_the_platform(server: Script) -> None:
    async with script() as front:
        front.answers(says({}, status=302, headers={"Location": f"{server.url}/"}))
        port = int(server.url.rpartition(":")[2])
        async with bench(http_allow=("127.0.0.1",), http_platform_ports=(port,)) as worker:
            found = await ask(worker, front.url)
    assert found.error is not None
    assert found.error.kind == "config"
    assert not server.seen


async def test_what_is_named_beside_the_platform_is_open(server: Script) -> None:
    place = server.url.removeprefix("http://")
    async with bench(http_allow=(place,), http_platform_ports=(1,)) as worker:
        assert (await ask(worker, server.url)).data["body"] == {"secret": 1}


def test_a_stack_allows_no_loopback_and_names_its_ports(tmp_path: Path) -> None:
    wires = ServiceAddresses(
        admin_dsn="postgresql://a:b@127.0.0.1:1/noetl",
        database="noetl",
        password_by_role=dict.fromkeys(
            [f"noetl_{name}" for name in ("planner", "projector", "outbox", "reaper", "archivist")],
            "p",
        ),
        nats_url_by_user=dict.fromkeys(("planner", "worker", "projector", "outbox", "reaper"), "n"),
        payload_url="file:///x",
        payload_access_key=None,
        payload_secret_key=None,
        secret_key="k",  # noqa: S106 - made for this test
        owner_digest="d",
    )
    for asked, allowed in (
        (StackOptions(), ""),
        (StackOptions(http_allow=["a:1", "b:2"]), "a:1,b:2"),
    ):
        names = ["postgres", "nats", "s3", *service_addresses.list_port_names(asked)]
        ports = {name: 9_000 + place for place, name in enumerate(names)}
        specs = service_addresses.build_service_specs(
            asked, wires=wires, ports=ports, environ={}, directory=tmp_path
        )
        environ = next(spec.environ for spec in specs if spec.name == "worker-1")
        assert environ["NOETL_WORKER_HTTP_ALLOW"] == allowed
        named = {int(port) for port in environ["NOETL_WORKER_HTTP_PLATFORM_PORTS"].split(",")}
        assert named == set(ports.values())
