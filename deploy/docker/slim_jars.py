"""Takes out of Spark's jars what no worker loads: `slim_jars.py FOLDER`.

Hive's metastore, the shell with its compiler, the server of Spark Connect, and libraries compiled
for other machines. Reading and writing files of every format, Kubernetes, streams and MLlib stay.
"""

import platform
import re
import shutil
import sys
import zipfile
from pathlib import Path

UNUSED = re.compile(
    # Hive; `hive-storage-api` is what ORC is written with.
    r"(spark-hive|hive-(?!storage-api)|datanucleus-|derby|javax\.jdo|jdo-api|libthrift|libfb303|jpam|HikariCP"
    r"|commons-dbcp|ST4|antlr-runtime|jta|transaction-api"
    # The shell, and the server of Connect: workers are clients of one.
    r"|spark-repl|scala-compiler|jline|spark-connect_|spark-pipelines"
    # Network libraries of other systems.
    r"|netty-[a-z-]+-.*(osx|windows))"
)
NATIVE = (".so", ".dll", ".jnilib", ".dylib", ".a")
OTHER_SYSTEMS = (
    r"osx|darwin|mac|win|freebsd|sunos|aix|musl|android|ppc|s390|riscv|mips|loongarch|sparc"
)
X86 = r"linux32|i386|/x86/"
OTHER_MACHINES = {
    "x86_64": rf"{OTHER_SYSTEMS}|{X86}|aarch|arm",
    "aarch64": rf"{OTHER_SYSTEMS}|{X86}|x86|amd64|linux64|/arm|armv",
}


def remove_unused(folder: Path) -> None:
    """Remove whole jars by name, and the folder of the shell of Connect."""
    shutil.rmtree(folder / "connect-repl", ignore_errors=True)
    for jar in folder.glob("*.jar"):
        if UNUSED.match(jar.name):
            jar.unlink()


def remove_foreign_libraries(folder: Path) -> None:
    """Write jars anew without what was compiled for other machines."""
    machine = OTHER_MACHINES.get(platform.machine())
    if machine is None:
        return
    foreign = re.compile(machine, re.IGNORECASE)
    for jar in folder.glob("*.jar"):
        with zipfile.ZipFile(jar) as whole:
            kept = [
                item
                for item in whole.infolist()
                if not (item.filename.endswith(NATIVE) and foreign.search(item.filename))
            ]
            if len(kept) == len(whole.infolist()):
                continue
            draft = jar.with_suffix(".new")
            with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as smaller:
                for item in kept:
                    smaller.writestr(item, whole.read(item))
        draft.chmod(jar.stat().st_mode)
        draft.replace(jar)


if __name__ == "__main__":
    jars = Path(sys.argv[1])
    remove_unused(jars)
    remove_foreign_libraries(jars)
