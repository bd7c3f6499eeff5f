"""One real node: containerd, kubelet and kube-proxy, with a network of pods by Debian's plugins."""

import shutil
import subprocess
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import msgspec
import psutil
from tests.support.cluster import programs
from tests.support.cluster.control_plane import POD_RANGE, SERVICE_RANGE, ControlPlane, find_port
from tests.support.cluster.host_process import HostProcess

NAME = "noetl-node"
PODS = "10.244.0.0/24"
BRIDGE = "noetlpods0"
READY_S = 120.0
PAUSE = "noetl-pause:1"
# Where a pod's network is kept, under a name of its own.
NETWORKS = Path("/run/netns")
# Names of Services, at the node's own address.
COREFILE = """
.:53 {{
    bind {address}
    errors
    cache 5
    kubernetes cluster.local {{
        kubeconfig {config}
    }}
}}
"""
CONTAINERD = """
version = 2
root = "{root}/root"
state = "{root}/state"
[grpc]
address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
path = "{root}/opt"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "docker.io/library/{pause}"
# A machine without CAP_SYS_RESOURCE lets nobody be spared more than its parent.
restrict_oom_score_adj = true
stream_server_address = "127.0.0.1"
stream_server_port = "{port}"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{plugins}"
conf_dir = "{networks}"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""


class Node:
    """Starts with `start`; `stop` ends every pod that it runs."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane = plane
        self.folder = folder
        self.socket = folder / "containerd.sock"
        self._processes: list[HostProcess] = []
        self._others = set(NETWORKS.glob("cni-*"))

    def start(self) -> None:
        """Start all three, and wait until the node is ready."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._start_containerd()
        self._load_pause()
        kubelet = self._start_kubelet()
        kubelet.wait_until(self._is_ready, timeout_s=READY_S, what="the node is ready")
        self._refuse_strays("-I")
        self._start_proxy()
        self._start_names()

    def load_image(self, tag: str) -> None:
        """Take an image over from Docker."""
        with subprocess.Popen(  # noqa: S603 - a tag of a test
            ["docker", "save", tag],  # noqa: S607 - wherever it is installed
            stdout=subprocess.PIPE,
        ) as saved:
            self._run_ctr("images", "import", "-", stdin=saved.stdout)
        if saved.returncode != 0:
            raise FileNotFoundError(f"Docker has no image {tag}: make images/bases images")

    def held_kubelet(self) -> AbstractContextManager[None]:
        """Let no pod of the node begin or end while the block runs."""
        (kubelet,) = [process for process in self._processes if process.name == "kubelet"]
        return kubelet.held_still()

    def stop(self) -> None:
        """End the processes that start pods, then the pods, then the rest, and what they left."""
        while len(self._processes) > 1:
            self._processes.pop().stop()
        self._kill_pods()
        if self._processes:
            self._processes.pop().stop()
        self._unmount()
        self._refuse_strays("-D")
        for command in (
            [programs.get_path("kube-proxy"), "--cleanup"],
            [programs.get_path("ip"), "link", "delete", BRIDGE],
        ):
            subprocess.run(command, check=False, capture_output=True)  # noqa: S603 - of its own
        for network in set(NETWORKS.glob("cni-*")) - self._others:
            self._unmount_path(network)
            network.unlink()
        for link in Path("/var/log/containers").glob("*.log"):
            if link.is_symlink() and link.readlink().is_relative_to(self.folder):
                link.unlink()

    def _start(self, name: str, *flags: str) -> HostProcess:
        process = HostProcess(name, [programs.get_path(name), *flags], folder=self.folder)
        self._processes.append(process)
        return process

    def _start_containerd(self) -> None:
        networks = self.folder / "networks"
        networks.mkdir(exist_ok=True)
        (networks / "10-pods.conflist").write_bytes(
            msgspec.json.encode(_describe_network(self.folder))
        )
        path = self.folder / "containerd.toml"
        path.write_text(
            CONTAINERD.format(
                root=self.folder / "containerd",
                socket=self.socket,
                pause=PAUSE,
                port=find_port(),
                plugins=programs.NETWORK_PLUGINS,
                networks=networks,
            ),
            encoding="utf-8",
        )
        containerd = self._start("containerd", "--config", str(path))
        containerd.wait_until(self.socket.exists, timeout_s=READY_S, what="containerd answers")

    def _load_pause(self) -> None:
        """Give the pods' first container an image: one that sleeps."""
        subprocess.run(  # noqa: S603 - an image of the tests
            ["docker", "build", "--quiet", "--tag", PAUSE, "-"],  # noqa: S607 - wherever it is
            check=True,
            capture_output=True,
            input=b'FROM noetl-debian\nCMD ["sleep", "infinity"]\n',
        )
        self.load_image(PAUSE)

    def _start_kubelet(self) -> HostProcess:
        config = self.folder / "kubelet.json"
        config.write_bytes(msgspec.json.encode(self._describe_kubelet()))
        client = self.plane.authority.write_config(
            "kubelet", self.plane.server, user=f"system:node:{NAME}", group="system:nodes"
        )
        return self._start(
            "kubelet",
            f"--config={config}",
            f"--kubeconfig={client}",
            f"--hostname-override={NAME}",
            f"--node-ip={self.plane.address}",
            f"--root-dir={self.folder / 'kubelet'}",
            f"--cert-dir={self.folder / 'kubelet-certificates'}",
        )

    def _describe_kubelet(self) -> dict[str, Any]:
        certificate, key = self.plane.authority.issue(
            "kubelet-server", user=f"system:node:{NAME}", hosts=(self.plane.address, NAME)
        )
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": f"unix://{self.socket}",
            "cgroupDriver": "cgroupfs",
            "failSwapOn": False,
            "clusterDNS": [self.plane.address],
            "clusterDomain": "cluster.local",
            "port": find_port(),
            "healthzPort": find_port(),
            "tlsCertFile": str(certificate),
            "tlsPrivateKeyFile": str(key),
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self.plane.authority.certificate)},
            },
            "authorization": {"mode": "Webhook"},
            "podLogsDir": str(self.folder / "pod-logs"),
            # A disk of many tests is nearly full: that is no reason to end pods or to lose images.
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "maxPods": 60,
        }

    def _refuse_strays(self, change: str) -> None:
        """Refuse what is meant for a Service before its rules are there.

        It would leave the machine, and who answers there might be taken for the Service while the
        connection lasts.
        """
        for chain in ("FORWARD", "OUTPUT"):
            rule = [chain, "-d", SERVICE_RANGE, "-p", "tcp", "-j", "REJECT"]
            subprocess.run(  # noqa: S603 - a rule of its own
                [programs.get_path("iptables"), change, *rule, "--reject-with", "tcp-reset"],
                check=change == "-I",
                capture_output=True,
            )

    def _start_proxy(self) -> None:
        client = self.plane.authority.write_config(
            "kube-proxy", self.plane.server, user="system:kube-proxy"
        )
        config = self.folder / "kube-proxy.json"
        config.write_bytes(
            msgspec.json.encode(
                {
                    "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
                    "kind": "KubeProxyConfiguration",
                    "clientConnection": {"kubeconfig": str(client)},
                    "clusterCIDR": POD_RANGE,
                    "mode": "iptables",
                    "hostnameOverride": NAME,
                    "healthzBindAddress": f"127.0.0.1:{find_port()}",
                    "metricsBindAddress": f"127.0.0.1:{find_port()}",
                    # What the kernel tracks belongs to the machine.
                    "conntrack": {"maxPerCore": 0, "min": 0},
                }
            )
        )
        self._start("kube-proxy", f"--config={config}")

    def _start_names(self) -> None:
        path = self.folder / "Corefile"
        text = COREFILE.format(address=self.plane.address, config=self.plane.kubectl.config)
        path.write_text(text, encoding="utf-8")
        self._start("coredns", "-conf", str(path))

    def _is_ready(self) -> bool:
        return any(
            condition["type"] == "Ready" and condition["status"] == "True"
            for node in self.plane.kubectl.list_objects("nodes")
            for condition in node["status"]["conditions"]
        )

    def _run_ctr(self, *arguments: str, stdin: Any = None) -> str:
        done = subprocess.run(  # noqa: S603 - containerd's own client
            [programs.get_path("ctr"), f"--address={self.socket}", "-n", "k8s.io", *arguments],
            check=True,
            capture_output=True,
            text=True,
            stdin=stdin,
        )
        return done.stdout

    def _kill_pods(self) -> None:
        """Kill each pod's shim with what it started: one that lost its server would go on."""
        for process in psutil.process_iter(["cmdline"]):
            if str(self.socket) in (process.info["cmdline"] or ()) and "-id" in process.cmdline():
                for one in (*process.children(recursive=True), process):
                    with suppress(psutil.NoSuchProcess):
                        one.kill()

    def _unmount_path(self, mount: Path) -> None:
        subprocess.run([programs.get_path("umount"), "--lazy", mount], check=False)  # noqa: S603 - of its own

    def _unmount(self) -> None:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
        for mount in reversed([line.split()[1] for line in mounts]):
            if mount.startswith(f"{self.folder}/"):
                self._unmount_path(Path(mount))
        shutil.rmtree(self.folder / "containerd", ignore_errors=True)


def _describe_network(folder: Path) -> dict[str, Any]:
    return {
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [
            {
                "type": "bridge",
                "bridge": BRIDGE,
                "isGateway": True,
                "ipMasq": True,
                "hairpinMode": True,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": PODS}]],
                    "dataDir": str(folder / "addresses"),
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": True}},
            # Docker has the machine drop what nobody lets through.
            {"type": "firewall", "backend": "iptables"},
        ],
    }
