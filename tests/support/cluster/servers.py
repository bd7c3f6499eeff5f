"""PostgreSQL, NATS and an S3 store as pods, with the users that compose makes too."""

import base64
import hashlib
import secrets
from typing import Any

from tests.support import composed
from tests.support.cluster import manifests
from tests.support.cluster.kubectl import Kubectl
from tests.support.cluster.programs import ROOT

COMPOSE = ROOT / "deploy/compose"
READY = "240s"
IMAGES = ("postgres:18", "nats:2.15-alpine", "chrislusf/seaweedfs:4.48")
LEDGER_USERS = ("owner", "planner", "projector", "outbox", "reaper", "archivist", "reader")
BUS_USERS = composed.list_bus_users()
PAYLOAD_URL = "s3://noetl?endpoint=http://s3.store.svc:8333&region=us-east-1"


class Servers:
    """The three servers, and the Secrets by which the charts find them."""

    def __init__(self, kubectl: Kubectl) -> None:
        self._kubectl = kubectl
        self._ledger = {user: secrets.token_hex(12) for user in ("admin", *LEDGER_USERS)}
        self._bus = {user: secrets.token_hex(12) for user in BUS_USERS}
        self._store = {"ACCESS_KEY": secrets.token_hex(10), "SECRET_KEY": secrets.token_hex(20)}
        self._secret_key = base64.b64encode(secrets.token_bytes(32)).decode()
        self.owner_token = f"owner_{secrets.token_urlsafe(32)}"

    def start(self) -> None:
        """Start all three, make the roles and the database, and wait until all are ready."""
        for namespace in ("postgres", "nats", "store"):
            self._kubectl.apply(manifests.build_namespace(namespace))
        self._kubectl.apply(
            *self._describe_postgres(), *self._describe_nats(), *self._describe_s3()
        )
        for namespace, name in (("postgres", "postgres"), ("nats", "nats"), ("store", "s3")):
            self._kubectl.run(
                "rollout",
                "status",
                f"deployment/{name}",
                "-n",
                namespace,
                f"--timeout={READY}",
                timeout_s=300,
            )
        self._kubectl.apply(self._describe_roles())
        self._kubectl.run(
            "wait",
            "--for=condition=complete",
            "job/roles",
            "-n",
            "postgres",
            f"--timeout={READY}",
            timeout_s=300,
        )

    def give_secrets(self, namespace: str) -> None:
        """Make the Secret of each chart, under the names of the charts' own values."""
        self._kubectl.apply(
            *(
                manifests.build_secret(f"noetl-{chart}", namespace, values)
                for chart, values in self._list_secrets().items()
            )
        )

    def _list_secrets(self) -> dict[str, dict[str, str]]:
        store = {
            "payload-access-key": self._store["ACCESS_KEY"],
            "payload-secret-key": self._store["SECRET_KEY"],
        }
        sealing = {"secret-key": self._secret_key}
        digest = {"owner-token-sha256": hashlib.sha256(self.owner_token.encode()).hexdigest()}
        return {
            "platform": self._find_ledger("owner") | self._find_bus("admin"),
            "planner": self._of("planner") | store | sealing | digest,
            "worker": self._find_bus("worker") | store | sealing,
            "projector": self._of("projector") | store,
            "outbox": self._of("outbox"),
            "reaper": self._of("reaper") | store,
        }

    def _of(self, user: str) -> dict[str, str]:
        return self._find_ledger(user) | self._find_bus(user)

    def _find_ledger(self, user: str) -> dict[str, str]:
        address = f"noetl_{user}:{self._ledger[user]}@postgres.postgres.svc/noetl"
        return {"postgres-dsn": f"postgresql://{address}"}

    def _find_bus(self, user: str) -> dict[str, str]:
        return {"nats-url": f"nats://{user}:{self._bus[user]}@nats.nats.svc:4222"}

    def _describe_postgres(self) -> list[Any]:
        environment = {
            "POSTGRES_PASSWORD": self._ledger["admin"],
            "PGPASSWORD": self._ledger["admin"],
            **{f"{user.upper()}_PASSWORD": self._ledger[user] for user in LEDGER_USERS},
        }
        return [
            *manifests.build_settings(
                "postgres", environment, COMPOSE / "roles.sh", COMPOSE / "walls.sql"
            ),
            *manifests.build_server(
                "postgres",
                namespace="postgres",
                image=IMAGES[0],
                ports=(5432,),
                args=["postgres", "-c", "max_connections=200"],
                envFrom=[{"secretRef": {"name": "environment"}}],
                readinessProbe=manifests.build_probe(
                    "pg_isready", "-h", "127.0.0.1", "-U", "postgres"
                ),
            ),
        ]

    def _describe_roles(self) -> Any:
        pod = {
            "restartPolicy": "OnFailure",
            "enableServiceLinks": False,
            "volumes": list(manifests.VOLUMES),
            "containers": [
                {
                    "name": "roles",
                    "image": IMAGES[0],
                    "command": ["/bin/sh", "/etc/noetl/roles.sh"],
                    "volumeMounts": list(manifests.MOUNTS),
                }
            ],
        }
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "roles", "namespace": "postgres"},
            "spec": {"template": {"spec": pod}},
        }

    def _describe_nats(self) -> list[Any]:
        environment = {f"NATS_{user.upper()}_PASSWORD": self._bus[user] for user in BUS_USERS}
        permissions = ROOT / "deploy/nats/permissions.conf"
        return [
            *manifests.build_settings("nats", environment, COMPOSE / "nats.conf", permissions),
            *manifests.build_server(
                "nats",
                namespace="nats",
                image=IMAGES[1],
                ports=(4222, 8222),
                command=["nats-server", "-c", "/etc/noetl/nats.conf"],
                envFrom=[{"secretRef": {"name": "environment"}}],
                readinessProbe=manifests.build_probe(
                    "wget", "-qO-", "http://127.0.0.1:8222/healthz"
                ),
            ),
        ]

    def _describe_s3(self) -> list[Any]:
        return [
            *manifests.build_settings("store", self._store, COMPOSE / "s3.sh"),
            *manifests.build_server(
                "s3",
                namespace="store",
                image=IMAGES[2],
                ports=(8333,),
                command=["/bin/sh", "/etc/noetl/s3.sh"],
                readinessProbe=manifests.build_probe("test", "-e", "/tmp/ready"),  # noqa: S108 - in its container
            ),
        ]
