"""Emulators of cloud storage: Google's from PyPI, Azure's where somebody has started it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from azure.storage.blob import ContainerClient
from gcp_storage_emulator import handlers, server
from tests.support.servers import wait_until

from noetl_cli.stack.processes import loopback

GCS_BUCKET = "noetl"
AZURE_ENDPOINT = "NOETL_TEST_AZURE_ENDPOINT"
AZURE_ABSENT = (
    "Azurite is published on npm only: `npx azurite-blob --skipApiVersionCheck`, then "
    f"`{AZURE_ENDPOINT}=http://127.0.0.1:10000/devstoreaccount1 make test/conformance K=payloads`"
)
AZURE_ACCOUNT = "devstoreaccount1"
# The key that every Azurite has; it is printed in its manual.
AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


@contextmanager
def gcs_emulator(folder: Path) -> Iterator[str]:
    """Run the emulator; yield the address of a payload store on it."""
    port = loopback.choose_ports(["gcs"], before={})["gcs"]
    command = [sys.executable, "-m", "tests.support.clouds", str(port), str(folder)]
    process = subprocess.Popen(command, start_new_session=True)  # noqa: S603 - our own program
    try:
        wait_until(lambda: answers(port), timeout_s=60, what="the emulator answers")
        yield f"gs://{GCS_BUCKET}?endpoint=http://127.0.0.1:{port}&anonymous=true"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def answers(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/", timeout=1) as answer:
            return bool(answer.status == HTTPStatus.OK)
    except (URLError, OSError):
        return False


def has_azure() -> bool:
    """Whether somebody has started Azurite and says where."""
    return AZURE_ENDPOINT in os.environ


def azure_store() -> str:
    """Make the container; return the address of a payload store."""
    endpoint = os.environ[AZURE_ENDPOINT]
    key = {"account_name": AZURE_ACCOUNT, "account_key": AZURE_KEY}
    container = ContainerClient(endpoint, "noetl", credential=key)
    if not container.exists():
        container.create_container()
    return f"azure://noetl?account={AZURE_ACCOUNT}&endpoint={endpoint}"


def with_preconditions() -> None:
    """Let the emulator refuse to replace what is there, which it does not look at by itself.

    It serves one request at a time, so that looking and writing are one.
    """
    upload = handlers.objects._multipart_upload

    def guarded(request: Any, response: Any, storage: Any) -> Any:
        bucket, name = request.params["bucket_name"], request.data["meta"].get("name")
        is_new_only = request.query.get("ifGenerationMatch") == ["0"]
        if is_new_only and storage.objects.get(bucket, {}).get(name) is not None:
            response.status = HTTPStatus.PRECONDITION_FAILED
            return None
        return upload(request, response, storage)

    handlers.objects._multipart_upload = guarded


if __name__ == "__main__":
    with_preconditions()
    server.create_server(
        "127.0.0.1", int(sys.argv[1]), data_dir=sys.argv[2], default_bucket=GCS_BUCKET
    ).run()
