"""A standalone Spark cluster out of the wheel: a master and two workers, each its own process."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import pyspark
from tests.support.java import BRIEF
from tests.support.servers import wait_until
from tests.support.services import free_port

from noetl_chassis.java import prepare_java_home
from noetl_worker.settings import read_java_environ

HOST = "127.0.0.1"
PATIENCE_S = 120.0
EXECUTOR = "CoarseGrainedExecutorBackend"


class Cluster:
    """A running cluster; every method blocks. What `environ` holds, every executor sees."""

    def __init__(self, folder: Path, *, workers: int = 2, port: int = 0) -> None:
        self.folder = folder
        self.port = port or free_port()
        self._workers = workers
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def master(self) -> str:
        """Where a driver finds it."""
        return f"spark://{HOST}:{self.port}"

    def start(self, environ: Mapping[str, str]) -> None:
        """Start every process and wait until the master answers."""
        environ = {**launcher_environ(self.folder), **environ}
        web = ("--webui-port", "0", "--host", HOST)
        self._run("master.Master", *web, "--port", str(self.port), environ=environ)
        wait_until(self._answers, timeout_s=PATIENCE_S, what="Spark's master answers")
        for number in range(self._workers):
            place = self.folder / f"worker-{number}"
            size = ("--cores", "1", "--memory", "1g", "--work-dir", str(place))
            self._run("worker.Worker", *web, *size, self.master, environ=environ)

    def executors(self) -> list[psutil.Process]:
        """The executors that run now, oldest first."""
        children = [
            child
            for process in self._processes
            for child in _children(process.pid)
            if any(EXECUTOR in word for word in _words(child))
        ]
        return sorted(children, key=lambda one: one.pid)

    def kill_executor(self, executor: psutil.Process | None = None) -> None:
        """Kill an executor, or the youngest, Java and all that it started."""
        executor = executor or self.executors()[-1]
        kill([*_children(executor.pid), executor])

    def executor_at(self, port: int) -> psutil.Process:
        """The executor that has connected to somebody from a port, by itself or what it started."""
        for executor in self.executors():
            if any(port in _ports(item) for item in [executor, *_children(executor.pid)]):
                return executor
        raise AssertionError(f"no executor has a connection from port {port}")

    def stop(self) -> None:
        """End every process that was started here."""
        for process in self._processes:
            kill(_children(process.pid))
            process.kill()
            process.wait()

    def _run(self, name: str, *arguments: str, environ: Mapping[str, str]) -> None:
        program = Path(pyspark.__file__).parent / "bin/spark-class"
        log = self.folder / f"{name}-{len(self._processes)}.log"
        with log.open("wb") as out:
            self._processes.append(
                subprocess.Popen(  # noqa: S603 - Spark's own launcher
                    ["/bin/bash", str(program), f"org.apache.spark.deploy.{name}", *arguments],
                    env=dict(environ),
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
            )

    def _answers(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex((HOST, self.port)) == 0


def launcher_environ(folder: Path) -> dict[str, str]:
    """The variables with which Spark's own programs start, and all that they see."""
    home = prepare_java_home(read_java_environ(), folder=folder)
    return {
        "PATH": os.defpath,
        "HOME": str(folder),
        "JAVA_HOME": str(home),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_NO_DAEMONIZE": "1",
        "PYSPARK_PYTHON": sys.executable,
        **BRIEF,
    }


def kill(processes: Iterable[psutil.Process]) -> None:
    """Kill processes, some of which may have ended meanwhile."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def kill_drivers() -> None:
    """Kill every Java process of this one: the drivers of its sessions."""
    kill(drivers(psutil.Process().pid))


def drivers(pid: int) -> list[psutil.Process]:
    """The Java processes of a process's Spark sessions."""
    return [item for item in _children(pid) if any("SparkSubmit" in word for word in _words(item))]


def _children(pid: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def _ports(process: psutil.Process) -> set[int]:
    try:
        return {connection.laddr.port for connection in process.net_connections("tcp")}
    except psutil.NoSuchProcess:
        return set()


def _words(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.NoSuchProcess:
        return []


@contextmanager
def standalone(folder: Path) -> Iterator[Cluster]:
    """A cluster that is started by its user, and stopped at the end whatever happened."""
    folder.mkdir(parents=True, exist_ok=True)
    cluster = Cluster(folder)
    try:
        yield cluster
    finally:
        cluster.stop()
