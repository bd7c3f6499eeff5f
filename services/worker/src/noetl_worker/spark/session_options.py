"""Options of a Spark session: read from settings, turned into Spark's configuration, and probed."""

import re
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct

from noetl_contracts.errors import Permanent, Retryable
from noetl_worker.spark import kubernetes
from noetl_worker.spark.kubernetes import Kubernetes

LOOPBACK = "127.0.0.1"
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
# Fewer partitions of a shuffle are not worth their planning; adaptive execution joins small ones.
PARTITIONS_MIN = 8
_CONF = "NOETL_WORKER_SPARK_CONF"
_REMOTE = "sc://"
_STANDALONE = "spark://"
_SECRET = re.compile(r"(?i)(secret|password|passphrase|token|access[.]?key|credential)")
SETTING = "NOETL_WORKER_SPARK_REACH_S"
_PORTS = {"spark": 7077, "sc": 15002, "https": 443, "http": 80}
_PAUSE_S = 0.25
_PROBE_S = 2.0


class SparkUnavailable(Permanent):
    """No Spark session can be started here until the deployment is changed."""


class SparkUnreachable(Retryable):
    """The cluster did not answer when a session was to be started there; it may later."""


class SparkLost(Retryable):
    """A Spark job was lost, alone or with its session; the next job finds another one."""


def show_address(master: str) -> str:
    """Return a master as it may be shown: what comes after the host may hold a token."""
    scheme, separator, location = master.partition("://")
    if not separator or master.startswith("k8s:"):
        return master
    return f"{scheme}://{location.partition('/')[0].rpartition('@')[2]}"


class SessionOptions(Struct, frozen=True, kw_only=True):
    """What a session is started with; `environ` is where a Java is looked for.

    `adopt` sets variables of this process that Spark's launcher hands on to its Java.
    """

    master: str
    folder: Path
    adopt: Callable[[Mapping[str, str]], None]
    environ: Mapping[str, str]
    conf: Mapping[str, str] = {}
    python: str = sys.executable
    memory_bytes: int = 1024**3
    jobs_max: int = 8
    # What is wrong with the settings, told to each task that needs a session.
    problem: str = ""
    # How long a cluster's address may take to answer.
    reach_s: float = 10.0
    # What executors of a cluster get of the worker's environment; all may see it.
    variables: Mapping[str, str] = {}
    # Whether the driver shows Spark's own page, on loopback.
    has_page: bool = False
    # Whether the session starts with the worker.
    is_prewarmed: bool = False
    kubernetes: Kubernetes = Kubernetes()

    @property
    def shown_address(self) -> str:
        """Return the master as it may be shown: what comes after the host may hold a token."""
        return show_address(self.master)

    @property
    def is_remote(self) -> bool:
        """Tell whether the driver is a Spark Connect server somewhere else."""
        return self.master.startswith(_REMOTE)

    @property
    def is_local(self) -> bool:
        """Tell whether executors are threads of the driver's own process."""
        return self.master.startswith("local")

    @property
    def is_loopback(self) -> bool:
        """Tell whether nothing outside this machine takes part."""
        host = urlsplit(self.master).hostname if "://" in self.master else ""
        return self.is_local or host in {LOOPBACK, "localhost", "::1"}


def parse_conf(conf_text: str) -> dict[str, str]:
    """Read `key=value;key=value`; raises `SparkUnavailable`.

    Secrets are refused: Spark shows its configuration to everyone who may see the application.
    """
    option_by_name: dict[str, str] = {}
    for entry in filter(None, (part.strip() for part in conf_text.split(";"))):
        key, equals, value = (part.strip() for part in entry.partition("="))
        if not equals or not key.startswith("spark."):
            text = f"Spark setting {key!r:.80} is not of the form spark.name=value"
            raise SparkUnavailable(text)
        if _SECRET.search(key) and not key.endswith((".file", ".enabled")):
            text = (
                f"Spark setting '{key}' would show a secret in Spark's own listings: give it to "
                "Spark by a file or by its environment variable"
            )
            raise SparkUnavailable(text)
        option_by_name[key] = value
    return option_by_name


def read_conf(conf_text: str) -> tuple[dict[str, str], str]:
    """Read the operator's settings; return them, or what is wrong with them.

    Tasks that need no Spark run under wrong settings, too.
    """
    try:
        return parse_conf(conf_text), ""
    except SparkUnavailable as problem:
        return {}, f"{_CONF}: {problem}"


def build_spark_settings(options: SessionOptions) -> dict[str, str]:
    """Return the configuration of a driver in this process's care; the operator's has precedence.

    Raises `SparkUnavailable` for executors on Kubernetes of which nobody said what they need.
    On a cluster Spark repeats tasks that were lost; those with effects outside refuse that.
    """
    folder = options.folder
    if options.has_page and not options.is_loopback:
        text = (
            "NOETL_WORKER_SPARK_UI shows Spark's page on loopback alone, and this driver listens "
            f"for {options.shown_address}: leave it out, or set spark.ui.enabled=true in {_CONF}, "
            "which shows the page to all who reach the worker"
        )
        raise SparkUnavailable(text)
    own_settings = {
        "spark.app.name": "noetl",
        "spark.ui.enabled": "true" if options.has_page else "false",
        "spark.ui.killEnabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.memory": f"{max(256, options.memory_bytes // 1024**2)}m",
        "spark.driver.extraJavaOptions": f'"-Djava.io.tmpdir={folder / "tmp"}"',
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.speculation": "false",
    }
    if options.is_local:
        own_settings |= {
            "spark.executorEnv.TMPDIR": str(folder / "tmp"),
            SHUFFLE_PARTITIONS: str(PARTITIONS_MIN),
            "spark.task.maxFailures": "1",
            "spark.stage.maxConsecutiveAttempts": "1",
        }
    if options.is_loopback:
        own_settings |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    if options.master.startswith(_STANDALONE):
        own_settings |= {
            f"spark.executorEnv.{name}": value for name, value in options.variables.items() if value
        }
    if kubernetes.is_kubernetes(options.master):
        if missing_settings := kubernetes.list_missing_settings(options.kubernetes, options.conf):
            text = (
                f"executors on Kubernetes need {' and '.join(missing_settings)}: see "
                "docs/reference/spark.md"
            )
            raise SparkUnavailable(text)
        own_settings |= kubernetes.build_kubernetes_settings(options.kubernetes)
        own_settings[kubernetes.TEMPLATE_SETTING] = str(kubernetes.find_pod_template(folder))
    return own_settings | dict(options.conf)


def list_addresses(master: str) -> list[tuple[str, int]]:
    """Return where a master listens, none for one in this process; raises `SparkUnavailable`.

    A standalone cluster may have several masters, one of which leads.
    """
    if master.startswith("local"):
        return []
    scheme, _, hosts = master.partition("://")
    if scheme == "k8s":
        scheme, hosts = ("https", hosts) if "://" not in hosts else hosts.split("://", 1)
    places = hosts.partition("/")[0].split(",")
    try:
        addresses = [urlsplit(f"//{place}") for place in places]
        return [
            (str(address.hostname), address.port or _PORTS[scheme])
            for address in addresses
            if address.hostname
        ]
    except (ValueError, KeyError) as problem:
        raise SparkUnavailable(f"the Spark master has no usable address: {problem}") from problem


def check_reachable(options: SessionOptions) -> None:
    """Return once one of a master's addresses answers; it blocks.

    Raises `SparkUnreachable`, and `SparkUnavailable` where the settings are wrong.
    """
    if options.problem:
        raise SparkUnavailable(options.problem)
    places = list_addresses(options.master)
    if not places:
        return
    deadline = time.monotonic() + options.reach_s
    while True:
        problems = [_probe_address(place, deadline) for place in places]
        if None in problems:
            return
        if time.monotonic() + _PAUSE_S > deadline:
            break
        time.sleep(_PAUSE_S)
    raise SparkUnreachable(
        f"nothing answers at {options.shown_address} within {options.reach_s:g} s "
        f"({problems[0]}): check "
        f"that the cluster runs and NOETL_WORKER_SPARK_MASTER; {SETTING} says how long is waited"
    )


def _probe_address(place: tuple[str, int], deadline: float) -> str | None:
    """Try an address once; say why it does not answer, None when it does."""
    left_s = max(0.05, min(_PROBE_S, deadline - time.monotonic()))
    try:
        socket.create_connection(place, timeout=left_s).close()
    except OSError as problem:
        return problem.strerror or type(problem).__name__
    return None
