"""SeaweedFS in one process: an S3 endpoint with access keys, on loopback."""

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from noetl_cli.stack.processes import programs
from noetl_cli.stack.processes.coarse_timers import with_coarse_timers
from noetl_cli.stack.processes.loopback import LOOPBACK
from noetl_cli.stack.processes.probes import ROOM_BYTES_MIN
from noetl_cli.stack.processes.process_spec import BucketProbe, ProcessSpec, ProcessTier
from noetl_cli.stack.servers import seaweedfs_security

REGION = "us-east-1"
BUCKET = "noetl"
# For the user's own data: its keys open no other bucket.
TARGET_BUCKET = "target"
PORTS = (
    "s3",
    "s3-grpc",
    "s3-master",
    "s3-master-grpc",
    "s3-volume",
    "s3-volume-grpc",
    "s3-filer",
    "s3-filer-grpc",
)
SOCKET_PATH_MAX = 100
VOLUME_MB_MAX = 1024
ACTIONS = ["Admin", "Read", "Write", "List", "Tagging"]
TARGET_ACTIONS = [f"{action}:{TARGET_BUCKET}" for action in ("Read", "Write", "List", "Tagging")]


class SeaweedFsServer(Struct, frozen=True, kw_only=True):
    """One server: where it keeps objects, where it listens, who may log in."""

    binary: Path
    directory: Path
    ports: dict[str, int]
    access_key: str
    secret_key: str
    bucket: str = BUCKET
    target_access_key: str = ""
    target_secret_key: str = ""

    @property
    def endpoint(self) -> str:
        """The address of the S3 interface."""
        return f"http://{LOOPBACK}:{self.ports['s3']}"

    @property
    def target_url(self) -> str:
        """The bucket for the user's own data, with its keys."""
        login = f"{self.target_access_key}:{self.target_secret_key}"
        return f"s3://{login}@{LOOPBACK}:{self.ports['s3']}/{TARGET_BUCKET}"

    @property
    def payload_url(self) -> str:
        """The bucket as services spell it in their settings."""
        return f"s3://{self.bucket}?endpoint={self.endpoint}&region={REGION}"


def describe_seaweedfs(
    *,
    home: Path,
    ports: dict[str, int],
    access_key: str,
    secret_key: str,
    target_access_key: str = "",
    target_secret_key: str = "",
) -> SeaweedFsServer:
    """Find the program and name the folder; without keys of its own there is no target bucket."""
    return SeaweedFsServer(
        binary=programs.find_seaweedfs(),
        directory=home / "seaweedfs",
        ports={name: ports[name] for name in PORTS},
        access_key=access_key,
        secret_key=secret_key,
        target_access_key=target_access_key,
        target_secret_key=target_secret_key,
    )


def prepare_seaweedfs(server: SeaweedFsServer) -> None:
    """Write who may log in, and what the parts of the server ask of each other."""
    (server.directory / "data").mkdir(mode=0o700, parents=True, exist_ok=True)
    server.directory.chmod(0o700)
    identities = [_build_identity("noetl", server.access_key, server.secret_key, ACTIONS)]
    if server.target_access_key:
        keys = server.target_access_key, server.target_secret_key
        identities.append(_build_identity("target", *keys, TARGET_ACTIONS))
    configuration = server.directory / "s3.json"
    configuration.touch(mode=0o600)
    configuration.write_bytes(msgspec.json.encode({"identities": identities}))
    seaweedfs_security.write_security(server.directory)


def _build_identity(
    name: str, access_key: str, secret_key: str, actions: list[str]
) -> dict[str, Any]:
    credentials = [{"accessKey": access_key, "secretKey": secret_key}]
    return {"name": name, "credentials": credentials, "actions": actions}


def build_seaweedfs_spec(server: SeaweedFsServer) -> ProcessSpec:
    """Describe the server's process."""
    probe = BucketProbe(
        endpoint=server.endpoint,
        bucket=server.bucket,
        region=REGION,
        access_key=server.access_key,
        secret_key=server.secret_key,
        other_buckets=(TARGET_BUCKET,) if server.target_access_key else (),
    )
    return ProcessSpec(
        name="s3",
        tier=ProcessTier.SERVER,
        argv=with_coarse_timers((str(server.binary), "server", *_build_flags(server))),
        directory=server.directory,
        environ={"GOMEMLIMIT": "512MiB"},
        probe=probe,
        port=server.ports["s3"],
        # The volumes are closed within milliseconds; the gateways then wait 15 s for streams
        # that never end, and may be killed.
        stop_timeout_s=1.0,
    )


def _build_flags(server: SeaweedFsServer) -> list[str]:
    ports = server.ports
    flags = [
        f"-dir={server.directory / 'data'}",
        f"-ip={LOOPBACK}",
        f"-ip.bind={LOOPBACK}",
        # Master and filer speak gRPC, with certificates: a master's HTTP asks nobody who calls.
        "-disableHttp",
        "-filer.disableHttp",
        "-master.telemetry=false",
        # A single master: no election, which takes seconds and now and then half a minute.
        "-master.peers=none",
        f"-master.port={ports['s3-master']}",
        f"-master.port.grpc={ports['s3-master-grpc']}",
        f"-master.volumeSizeLimitMB={VOLUME_MB_MAX}",
        f"-volume.port={ports['s3-volume']}",
        f"-volume.port.grpc={ports['s3-volume-grpc']}",
        "-volume.max=0",
        # Its own bound is a share of the disk: a large one that has room counts as full.
        f"-volume.minFreeSpace={ROOM_BYTES_MIN // 1024**2}MiB",
        "-volume.preStopSeconds=0",
        "-filer",
        f"-filer.port={ports['s3-filer']}",
        f"-filer.port.grpc={ports['s3-filer-grpc']}",
        "-s3",
        f"-s3.port={ports['s3']}",
        f"-s3.port.grpc={ports['s3-grpc']}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        # Executors of Spark get short-lived keys by it; only the first login may ask for some.
        "-s3.iam=true",
        f"-s3.config={server.directory / 's3.json'}",
    ]
    sockets = server.directory / "filer.sock"
    if len(str(sockets)) <= SOCKET_PATH_MAX:
        flags += [
            f"-filer.localSocket={sockets}",
            f"-s3.localSocket={sockets.with_name('s3.sock')}",
        ]
    return flags
