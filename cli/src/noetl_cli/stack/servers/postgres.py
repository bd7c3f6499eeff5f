"""The stack's PostgreSQL server: its folder, its cluster, its settings and its command."""

import os
import shutil
import signal
import subprocess
import zlib
from pathlib import Path
from urllib.parse import quote

import psutil
from msgspec import Struct

from noetl_cli.errors import StackError
from noetl_cli.stack.processes import process_spec, programs
from noetl_cli.stack.processes.loopback import LOOPBACK
from noetl_cli.stack.processes.process_spec import (
    CommandProbe,
    ProcessSpec,
    ProcessTier,
    ProcessUser,
)

NAME = "postmaster.pid"
ORPHAN_TIMEOUT_S = 20.0
SUPERUSER = "postgres"
MAJOR = "18"
SOCKET_PATH_MAX = 100
INITDB_TIMEOUT_S = 120
# Where the data goes when PostgreSQL's own user cannot reach the folder that was asked for.
FALLBACK_ROOT = Path("/var/tmp")  # noqa: S108 - the folder made there is checked to be ours
# Sized for two to eight cores that the database shares with everything else.
SETTINGS: dict[str, str] = {
    "max_connections": "200",
    "shared_buffers": "256MB",
    "effective_cache_size": "1GB",
    "work_mem": "8MB",
    "maintenance_work_mem": "64MB",
    "wal_buffers": "16MB",
    "min_wal_size": "256MB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "15min",
    "checkpoint_completion_target": "0.9",
    "wal_compression": "on",
    "random_page_cost": "1.1",
    "autovacuum_naptime": "15s",
    # Our statements are short: compiling one costs more than running it.
    "jit": "off",
    "password_encryption": "scram-sha-256",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] %q%u@%d ",
    "log_checkpoints": "off",
    # The client is told why its statement failed; the log does not repeat the statement.
    "log_min_error_statement": "panic",
    "log_parameter_max_length_on_error": "0",
}
# The ledger's promise rests on these three: `noetl doctor` checks them.
DURABLE: dict[str, str] = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
# For throw-away servers of tests: a killed process loses nothing, a power failure would.
UNSAFE: dict[str, str] = {"fsync": "off", "synchronous_commit": "on", "full_page_writes": "on"}


def clear_stale_pid_file(data: Path) -> None:
    """Remove the file if no server runs on the data, and end a server that nobody keeps.

    The number in it may belong to somebody else by now, and a crash may have left it empty: at
    both PostgreSQL would refuse to start. So the server is looked for, not the number.
    """
    file = data / NAME
    if not file.exists():
        return
    servers = _list_servers_on(data)
    for server in servers:
        server.send_signal(signal.SIGINT)
    _, alive = psutil.wait_procs(servers, timeout=ORPHAN_TIMEOUT_S)
    if alive:
        raise StackError(
            f"A PostgreSQL server (process {alive[0].pid}) still runs on {data}.",
            way_out=f"Stop it with: kill -INT {alive[0].pid}",
        )
    file.unlink(missing_ok=True)


def _list_servers_on(data: Path) -> list[psutil.Process]:
    """List the servers that were started on the data; their own children name no folder."""
    servers = []
    for process in psutil.process_iter():
        try:
            argv = process.cmdline()
        except psutil.Error:
            continue
        if argv and Path(argv[0]).name == "postgres" and str(data) in argv[1:]:
            servers.append(process)
    return servers


class PostgresCluster(Struct, frozen=True, kw_only=True):
    """One cluster: where it lives, how it is reached, who runs it."""

    tree: Path
    directory: Path
    port: int
    password: str
    owner: ProcessUser | None
    is_durable: bool = True

    @property
    def data_folder(self) -> Path:
        """Where the cluster's files are."""
        return self.directory / "data"

    @property
    def sockets_folder(self) -> Path:
        """Where its Unix socket is."""
        return self.directory / "run"


def describe_postgres(
    *,
    home: Path,
    port: int,
    password: str,
    is_durable: bool = True,
    former: Path | None = None,
) -> PostgresCluster:
    """Decide on user, programs and folder; touch nothing but a copy of the programs.

    `former` is where this `home` had its cluster so far: it stays there. Raises `StackError` when
    that folder belongs to another user.
    """
    owner = process_spec.find_unprivileged_user()
    if former is not None and (former / "data" / "PG_VERSION").is_file():
        directory = former
        if (folder := find_folder_outside(home, former)) is not None:
            # Others can write beside it, and may have put their own in its place.
            _make_own_folder(folder)
    else:
        directory = choose_cluster_folder(home, owner, password=password)
    return PostgresCluster(
        tree=_find_reachable_tree(owner),
        directory=directory,
        port=port,
        password=password,
        owner=owner,
        is_durable=is_durable,
    )


def find_folder_outside(home: Path, directory: Path) -> Path | None:
    """Name the folder that was made for a cluster outside of its `home`, if there is one."""
    folder = directory.parent
    is_ours = folder.parent == FALLBACK_ROOT and folder.name.startswith(f"noetl-{os.geteuid()}-")
    return folder if is_ours and not directory.is_relative_to(home) else None


def choose_cluster_folder(home: Path, owner: ProcessUser | None, *, password: str) -> Path:
    """Choose the folder of the cluster: below `home`, or where its user can reach it."""
    if process_spec.can_enter(owner, home):
        return home / "postgres"
    return _make_own_folder(name_fallback_folder(home, password=password)) / "postgres"


def name_fallback_folder(home: Path, *, password: str) -> Path:
    """Name the folder that stands in for a `home` which PostgreSQL's user cannot enter.

    The name follows the password: a cluster that a deleted `home` left there opens with another
    password, and a new `home` of the same name must not meet it.
    """
    key = zlib.crc32(password.encode(), zlib.crc32(bytes(home.resolve())))
    return FALLBACK_ROOT / f"noetl-{os.geteuid()}-{key:08x}"


def prepare_postgres(postgres: PostgresCluster) -> None:
    """Make the cluster when it is missing, write its settings, clear what a crash left."""
    postgres.directory.mkdir(parents=True, exist_ok=True)
    if postgres.owner is not None:
        postgres.directory.chmod(0o711)
    postgres.sockets_folder.mkdir(mode=0o700, exist_ok=True)
    process_spec.change_owner(postgres.sockets_folder, postgres.owner)
    if not (postgres.data_folder / "PG_VERSION").is_file():
        _create_cluster(postgres)
    _check_cluster_version(postgres)
    (postgres.directory / "postgresql.conf").write_text(_render_postgresql_conf(postgres))
    clear_stale_pid_file(postgres.data_folder)


def build_postgres_spec(postgres: PostgresCluster) -> ProcessSpec:
    """Describe the server's process."""
    bin_ = postgres.tree / "bin"
    configuration = postgres.directory / "postgresql.conf"
    ready = ("-h", LOOPBACK, "-p", str(postgres.port), "-t", "2", "-q")
    return ProcessSpec(
        name="postgres",
        tier=ProcessTier.SERVER,
        argv=(
            str(bin_ / "postgres"),
            *("-D", str(postgres.data_folder)),
            *("-c", f"config_file={configuration}"),
        ),
        directory=postgres.data_folder,
        owner=postgres.owner,
        before_start=lambda: clear_stale_pid_file(postgres.data_folder),
        probe=CommandProbe(
            argv=(str(programs.find_postgres_tree() / "bin" / "pg_isready"), *ready)
        ),
        port=postgres.port,
        # "Fast": end sessions, write a checkpoint. SIGTERM would wait for clients to leave.
        stop_signal=signal.SIGINT,
        # "Immediate": no checkpoint, which would write all to the disk that is deleted next.
        discard_signal=signal.SIGQUIT,
        stop_timeout_s=30.0,
    )


def build_dsn(*, port: int, user: str, password: str, database: str) -> str:
    """Spell the address of a database for one role."""
    return f"postgresql://{quote(user)}:{quote(password, safe='')}@{LOOPBACK}:{port}/{database}"


def admin_dsn(postgres: PostgresCluster, *, database: str = "postgres") -> str:
    """Spell the superuser's address of a database."""
    return build_dsn(
        port=postgres.port, user=SUPERUSER, password=postgres.password, database=database
    )


def _find_reachable_tree(owner: ProcessUser | None) -> Path:
    tree = programs.find_postgres_tree()
    if process_spec.can_run(owner, tree / "bin" / "postgres"):
        return tree
    if owner is None:
        raise StackError(
            f"{tree / 'bin' / 'postgres'} does not start on this machine.",
            way_out=f"Run it with --version to see why, or reinstall {programs.POSTGRES_PACKAGE}.",
        )
    stamp = zlib.crc32(f"{tree}{tree.stat().st_mtime_ns}".encode())
    copy = _make_own_folder(FALLBACK_ROOT / f"noetl-{os.geteuid()}-pgsql-{stamp:08x}") / MAJOR
    if not copy.is_dir():
        # The programs look for their libraries beside the package that they came in.
        package = tree.parent
        partial = copy.with_name(f"{MAJOR}.{os.getpid()}")
        for folder in (tree, package.with_name(f"{package.name}.libs")):
            if folder.is_dir():
                place_ = partial / folder.relative_to(package.parent)
                shutil.copytree(
                    folder, place_, symlinks=True, ignore=shutil.ignore_patterns("include")
                )
        try:
            partial.rename(copy)
        except OSError:
            # Somebody else finished the same copy first.
            shutil.rmtree(partial, ignore_errors=True)
    return copy / tree.relative_to(tree.parents[1])


def _make_own_folder(folder: Path) -> Path:
    folder.mkdir(mode=0o711, exist_ok=True)
    folder_stat = folder.lstat()
    if folder.is_symlink() or folder_stat.st_uid != os.geteuid() or folder_stat.st_mode & 0o022:
        raise StackError(
            f"{folder} belongs to somebody else.",
            way_out="Remove it, or choose another folder with --dir.",
        )
    return folder


def _create_cluster(postgres: PostgresCluster) -> None:
    # Built beside its final name, so that an interrupted creation is never taken for a cluster.
    partial = postgres.directory / "data.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(mode=0o700)
    process_spec.change_owner(partial, postgres.owner)
    password_file = postgres.directory / "password.partial"
    password_file.unlink(missing_ok=True)
    handle = os.open(password_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(postgres.password)
    process_spec.change_owner(password_file, postgres.owner)
    try:
        _run_initdb(postgres, partial=partial, password_file=password_file)
    finally:
        password_file.unlink(missing_ok=True)
    partial.rename(postgres.data_folder)


def _run_initdb(postgres: PostgresCluster, *, partial: Path, password_file: Path) -> None:
    argv = [
        str(postgres.tree / "bin" / "initdb"),
        *("-D", str(partial), "-U", SUPERUSER, f"--pwfile={password_file}"),
        *("-A", "scram-sha-256", "-k", "-E", "UTF8"),
        # The same sort order on every machine, independent of its installed locales.
        *("--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"),
        *(() if postgres.is_durable else ("--no-sync",)),
    ]
    process = subprocess.run(  # noqa: S603 - argv is built above from our own paths
        argv,
        check=False,
        cwd=partial,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=INITDB_TIMEOUT_S,
        **process_spec.build_user_arguments(postgres.owner),
    )
    if process.returncode != 0:
        last = (process.stderr.strip() or process.stdout.strip()).splitlines()[-1:]
        raise StackError(
            f"PostgreSQL could not create its data folder {postgres.data_folder}: {' '.join(last)}",
            way_out="Check that the disk has room and that the folder is writable.",
        )


def _check_cluster_version(postgres: PostgresCluster) -> None:
    cluster_version = (postgres.data_folder / "PG_VERSION").read_text().strip()
    if cluster_version != MAJOR:
        raise StackError(
            f"{postgres.data_folder} was made by PostgreSQL {cluster_version}; "
            f"this is PostgreSQL {MAJOR}.",
            way_out="Dump it with the older version, or start in a fresh folder with --dir.",
        )


def _render_postgresql_conf(postgres: PostgresCluster) -> str:
    sockets = str(postgres.sockets_folder)
    chosen = {
        **SETTINGS,
        **(DURABLE if postgres.is_durable else UNSAFE),
        "listen_addresses": LOOPBACK,
        "port": str(postgres.port),
        "unix_socket_directories": sockets if len(sockets) <= SOCKET_PATH_MAX else "",
        "unix_socket_permissions": "0700",
    }
    lines = [f"{name} = '{value}'" for name, value in sorted(chosen.items())]
    lines.append("include_if_exists 'custom.conf'")
    return "\n".join(
        ["# Written at every start; put your own settings into custom.conf.", *lines, ""]
    )
