"""A driver whose master is Kubernetes: what it asks the cluster for.

There is no cluster here: a server that writes down what Spark asks for stands for its API.
"""

import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.support.polling import eventually
from tests.support.sparking import forget_keys
from tests.support.working import settings_of

from noetl_contracts import codec
from noetl_worker import wiring
from noetl_worker.spark.session import open_spark_session
from noetl_worker.spark.session_options import SparkUnavailable

HOST = "127.0.0.1"
PODS = "/api/v1/namespaces/data/pods"
OWN = {
    "spark_image": "registry.example/noetl-worker:1",
    "spark_namespace": "data",
    "spark_service_account": "noetl-spark",
    "spark_executors": 1,
    "spark_secret": "noetl-worker",
    "spark_driver_host": "worker.data.svc",
}
SEAL_KEY = "k1:" + base64.b64encode(bytes(32)).decode()
EMPTY = {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}


class Api(BaseHTTPRequestHandler):
    """Agrees to everything; what is made stays as it was asked for, and nothing happens."""

    made: list[tuple[str, dict[str, Any]]]
    is_over: threading.Event

    def do_GET(self) -> None:
        """Show that there is nothing; a watch waits for something to happen."""
        if "watch=true" in self.path:
            self.is_over.wait(5)
        self._answer(EMPTY)

    def do_POST(self) -> None:
        """Make what is asked for."""
        body = codec.decode_json(self.rfile.read(int(self.headers["Content-Length"])))
        self.made.append((self.path, body))
        self._answer({**body, "metadata": {**body["metadata"], "uid": "u", "resourceVersion": "1"}})

    def do_DELETE(self) -> None:
        """Remove what is named."""
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer({"kind": "Status", "apiVersion": "v1", "status": "Success"})

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - named by its base class
        """Say nothing."""

    def _answer(self, body: dict[str, Any]) -> None:
        data = codec.encode_json(body)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def cluster() -> Iterator[tuple[str, list[tuple[str, dict[str, Any]]]]]:
    """Serve an API; yields its address as a master, and what was made."""
    made: list[tuple[str, dict[str, Any]]] = []
    is_over = threading.Event()
    api = type("TheApi", (Api,), {"made": made, "is_over": is_over})
    server = ThreadingHTTPServer((HOST, 0), api)
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    try:
        yield f"k8s://http://{HOST}:{server.server_port}", made
    finally:
        is_over.set()
        server.shutdown()
        server.server_close()


async def test_executors_are_asked_for_as_pods_that_find_the_driver_and_their_keys(
    tmp_path: Path,
) -> None:
    with cluster() as (master, made):
        config = settings_of(
            spark_master=master, payload_url="s3://store", payload_seal_key=SEAL_KEY, **OWN
        )
        async with open_spark_session(
            wiring.build_spark_options(config, tmp_path)
        ) as spark_session:
            assert (
                await spark_session.run_job(lambda one: one.sparkContext.master, name="any")
                == master
            )

            async def pods() -> list[dict[str, Any]]:
                return [body for path, body in made if path == PODS]

            (pod,) = await eventually(pods, timeout_s=120)
    forget_keys()
    (container,) = pod["spec"]["containers"]
    # As strict as a namespace can be.
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    environ = {item["name"]: item for item in container["env"]}
    assert (container["image"], pod["spec"]["serviceAccountName"]) == (
        "registry.example/noetl-worker:1",
        "noetl-spark",
    )
    assert environ["SPARK_DRIVER_URL"]["value"] == (
        "spark://CoarseGrainedScheduler@worker.data.svc:7078"
    )
    assert environ["NOETL_WORKER_PAYLOAD_URL"]["value"] == "s3://store"
    for name in ("SECRET_KEY", "NATS_URL", "PAYLOAD_SEAL_KEY"):
        source = environ[f"NOETL_WORKER_{name}"]["valueFrom"]["secretKeyRef"]
        key = name.lower().replace("_", "-")
        assert (source["name"], source["key"]) == ("noetl-worker", key)
    assert config.secret_key not in codec.encode_text(made)
    assert config.nats_url not in codec.encode_text(made)
    assert SEAL_KEY not in codec.encode_text(made)


def test_executors_ask_for_no_key_that_the_secret_may_lack(tmp_path: Path) -> None:
    config = settings_of(spark_master="k8s://http://api", payload_url="s3://store", **OWN)
    secret_keys = wiring.build_spark_options(config, tmp_path).kubernetes.secret_keys
    assert "NOETL_WORKER_SECRET_KEY" in secret_keys
    assert "NOETL_WORKER_PAYLOAD_SEAL_KEY" not in secret_keys


@pytest.mark.parametrize(
    ("left_out", "named"),
    [("spark_image", "SPARK_IMAGE"), ("spark_driver_host", "SPARK_DRIVER_HOST")],
)
async def test_what_executors_cannot_be_without_is_named(
    tmp_path: Path, left_out: str, named: str
) -> None:
    with cluster() as (master, made):
        config = settings_of(spark_master=master, **{**OWN, left_out: ""})
        async with open_spark_session(
            wiring.build_spark_options(config, tmp_path)
        ) as spark_session:
            with pytest.raises(SparkUnavailable, match=f"{named}.*docs/reference/spark.md"):
                await spark_session.run_job(lambda one: one, name="any")
    assert made == []
