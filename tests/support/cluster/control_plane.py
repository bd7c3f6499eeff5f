"""etcd, the API server, the controllers and the scheduler as processes of this machine."""

import socket
from contextlib import suppress
from pathlib import Path

from tests.support.cluster import programs
from tests.support.cluster.authority import Authority
from tests.support.cluster.host_process import HostProcess
from tests.support.cluster.kubectl import Kubectl, KubectlError

READY_S = 120.0
SERVICE_RANGE = "10.96.0.0/16"
POD_RANGE = "10.244.0.0/16"
# The first of the range is the API server's own.
API_SERVICE = "10.96.0.1"
ADMINS = "system:masters"


def find_address() -> str:
    """Find the address under which pods reach this machine; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])


def find_port() -> int:
    """Find a port that nobody uses now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


class ControlPlane:
    """Starts with `start`; everything of it is in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = find_address()
        self.port = find_port()
        self.server = f"https://{self.address}:{self.port}"
        self.authority = Authority(folder / "certificates")
        self.signing_key = self.authority.make_signing_key()
        admin = self.authority.write_config("admin", self.server, user="admin", group=ADMINS)
        self.kubectl = Kubectl(admin)
        self._processes: list[HostProcess] = []

    def start(self) -> None:
        """Start all four, and wait until the API answers."""
        etcd = f"http://127.0.0.1:{find_port()}"
        self._start_etcd(etcd)
        server = self._start_api_server(etcd)
        server.wait_until(self._is_ready, timeout_s=READY_S, what="the API answers")
        for name, user, flags in (
            ("kube-controller-manager", "system:kube-controller-manager", self._controller_flags()),
            ("kube-scheduler", "system:kube-scheduler", []),
        ):
            config = self.authority.write_config(name, self.server, user=user, group=ADMINS)
            self._start(
                name,
                f"--kubeconfig={config}",
                f"--authentication-kubeconfig={config}",
                f"--authorization-kubeconfig={config}",
                f"--secure-port={find_port()}",
                "--bind-address=127.0.0.1",
                "--leader-elect=false",
                *flags,
            )
        self.kubectl.run("wait", "--for=create", "serviceaccount/default", "--timeout=60s")

    def stop(self) -> None:
        """End all, the last first."""
        while self._processes:
            self._processes.pop().stop()

    def _start(self, name: str, *flags: str) -> HostProcess:
        process = HostProcess(name, [programs.get_path(name), *flags], folder=self.folder)
        self._processes.append(process)
        return process

    def _start_etcd(self, url: str) -> None:
        peer = f"http://127.0.0.1:{find_port()}"
        self._start(
            "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={url}",
            f"--advertise-client-urls={url}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            # What is kept here is worth nothing after the tests.
            "--unsafe-no-fsync",
        )

    def _start_api_server(self, etcd: str) -> HostProcess:
        authority = self.authority.certificate
        hosts = (self.address, "127.0.0.1", API_SERVICE, "kubernetes.default.svc", "localhost")
        certificate, key = self.authority.issue("api-server", user="kube-apiserver", hosts=hosts)
        front, front_key = self.authority.issue("front-proxy", user="front-proxy-client")
        client, client_key = self.authority.issue("api-client", user="api", group=ADMINS)
        return self._start(
            "kube-apiserver",
            f"--etcd-servers={etcd}",
            f"--secure-port={self.port}",
            f"--advertise-address={self.address}",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
            f"--client-ca-file={authority}",
            f"--kubelet-certificate-authority={authority}",
            f"--kubelet-client-certificate={client}",
            f"--kubelet-client-key={client_key}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--requestheader-client-ca-file={authority}",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-username-headers=X-Remote-User",
            f"--proxy-client-cert-file={front}",
            f"--proxy-client-key-file={front_key}",
            "--enable-aggregator-routing=true",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--service-account-key-file={self.signing_key}",
            f"--service-account-signing-key-file={self.signing_key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
        )

    def _controller_flags(self) -> list[str]:
        return [
            f"--root-ca-file={self.authority.certificate}",
            f"--service-account-private-key-file={self.signing_key}",
            "--use-service-account-credentials=true",
            f"--cluster-cidr={POD_RANGE}",
            "--allocate-node-cidrs=true",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            # A loop of 15 s is what clusters have; the tests measure against it.
            "--horizontal-pod-autoscaler-sync-period=15s",
            # A kubelet that a test holds still is not lost.
            "--node-monitor-grace-period=10m",
        ]

    def _is_ready(self) -> bool:
        with suppress(KubectlError):
            return self.kubectl.run("get", "--raw", "/readyz") == "ok"
        return False
