"""Readiness probes of processes: HTTP, a command, NATS, a bucket."""

import shutil
import subprocess
from pathlib import Path
from typing import assert_never
from urllib.parse import urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from noetl_cli.stack.processes import loopback, nats_requests
from noetl_cli.stack.processes.process_spec import (
    BucketProbe,
    CommandProbe,
    HttpProbe,
    NatsProbe,
    Probe,
)

PROBE_TIMEOUT_S = 5.0
# Large enough to need a volume, which SeaweedFS makes only when it is asked for one.
PROBE_BYTES = b"\0" * 4096
CREATED = {200, 201, 409}
# Less than this is soon full again.
ROOM_BYTES_MIN = 64 * 1024**2


def is_answering(probe: Probe | None) -> bool:
    """Tell whether a process is ready; one without a probe is ready once it runs."""
    match probe:
        case None:
            return True
        case HttpProbe(url=url):
            return loopback.get_status(url) == loopback.OK
        case CommandProbe(argv=argv):
            return _is_command_ok(argv)
        case NatsProbe(url=url):
            health = nats_requests.request_health(url)
            return health is not None and health.is_well
        case BucketProbe():
            return _can_put_object(probe)
        case _:
            assert_never(probe)


def has_room(folder: Path) -> bool:
    """Tell whether a server could write again, if it tried."""
    try:
        return shutil.disk_usage(folder).free >= ROOM_BYTES_MIN
    except OSError:
        return False


def is_unwell(probe: NatsProbe) -> bool:
    """Tell whether NATS says that it cannot store; one that says nothing is only slow.

    The process keeper asks time and again, and restarts one that stays so.
    """
    health = nats_requests.request_health(probe.url)
    return health is not None and not health.is_well


def _is_command_ok(argv: tuple[str, ...]) -> bool:
    try:
        process = subprocess.run(  # noqa: S603 - argv comes from our own specs
            argv,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=PROBE_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return False
    return process.returncode == 0


def _can_put_object(probe: BucketProbe) -> bool:
    for bucket in (probe.bucket, *probe.other_buckets):
        if _put_signed(probe, path=f"/{bucket}", body=b"") not in CREATED:
            return False
    return _put_signed(probe, path=f"/{probe.bucket}/.ready", body=PROBE_BYTES) == loopback.OK


def _put_signed(probe: BucketProbe, *, path: str, body: bytes) -> int | None:
    address = probe.endpoint.rstrip("/") + path
    request = AWSRequest(
        method="PUT", url=address, data=body, headers={"Host": urlsplit(address).netloc}
    )
    credentials = Credentials(probe.access_key, probe.secret_key)
    S3SigV4Auth(credentials, "s3", probe.region).add_auth(request)
    headers = dict(request.headers.items())
    answer = loopback.send_request(address, method="PUT", body=body, headers=headers)
    return None if answer is None else answer.status
