"""Asks whether a cluster's address answers at all, before a session is started there.

Spark itself needs a minute and more to give up, and a Java process to find out.
"""

import socket
import time
from urllib.parse import urlsplit

from noetl_worker.spark.starting import Options, SparkUnavailable, SparkUnreachable

SETTING = "NOETL_WORKER_SPARK_REACH_S"

_PORTS = {"spark": 7077, "sc": 15002, "https": 443, "http": 80}
_PAUSE_S = 0.25
_PROBE_S = 2.0


def addresses(master: str) -> list[tuple[str, int]]:
    """Return where a master listens, none for one in this process; raises `SparkUnavailable`.

    A standalone cluster may have several masters, one of which leads.
    """
    if master.startswith("local"):
        return []
    scheme, _, rest = master.partition("://")
    if scheme == "k8s":
        scheme, rest = ("https", rest) if "://" not in rest else rest.split("://", 1)
    places = rest.partition("/")[0].split(",")
    try:
        found = [urlsplit(f"//{place}") for place in places]
        return [(str(one.hostname), one.port or _PORTS[scheme]) for one in found if one.hostname]
    except (ValueError, KeyError) as problem:
        raise SparkUnavailable(f"the Spark master has no usable address: {problem}") from problem


def check_reachable(options: Options) -> None:
    """Return once one of a master's addresses answers; raises `SparkUnreachable`. It blocks."""
    places = addresses(options.master)
    if not places:
        return
    deadline = time.monotonic() + options.reach_s
    while True:
        problems = [_refusal(place, deadline) for place in places]
        if None in problems:
            return
        if time.monotonic() + _PAUSE_S > deadline:
            break
        time.sleep(_PAUSE_S)
    raise SparkUnreachable(
        f"nothing answers at {options.address} within {options.reach_s:g} s ({problems[0]}): check "
        f"that the cluster runs and NOETL_WORKER_SPARK_MASTER; {SETTING} says how long is waited"
    )


def _refusal(place: tuple[str, int], deadline: float) -> str | None:
    """Try an address once; say why it does not answer, None when it does."""
    left_s = max(0.05, min(_PROBE_S, deadline - time.monotonic()))
    try:
        socket.create_connection(place, timeout=left_s).close()
    except OSError as problem:
        return problem.strerror or type(problem).__name__
    return None
