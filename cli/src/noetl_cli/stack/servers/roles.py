"""The login roles of the services and the databases that they use."""

import subprocess
from importlib import resources
from urllib.parse import unquote, urlsplit, urlunsplit

from noetl_cli.errors import StackError
from noetl_cli.stack.processes import health_check, programs
from noetl_contracts import codec

OWNER_ROLE = "noetl_owner"
ROLES = (
    OWNER_ROLE,
    "noetl_planner",
    "noetl_projector",
    "noetl_outbox",
    "noetl_reaper",
    "noetl_archivist",
    "noetl_reader",
    "pft",
)
DATABASE = "noetl"
TARGET_DATABASE = "target"
TARGET_ROLE = "pft"
PSQL_TIMEOUT_S = 60
# A name of the server has 63 characters; the longest before a tenant's has 15.
_TENANT_CHARACTERS_MAX = 40


def build_role_suffix(tenant: str) -> str:
    """Return what stands behind the names of roles that open a tenant's own database alone."""
    is_short = len(tenant) <= _TENANT_CHARACTERS_MAX
    return f"_{tenant if is_short else codec.digest_hex(tenant.encode())[:32]}"


def create_roles(
    *, admin_dsn: str, database: str, password_by_role: dict[str, str], path: str
) -> None:
    """Make roles and databases; harmless when they exist."""
    script = (resources.files("noetl_cli.stack") / "roles.sql").read_text("utf-8")
    variables = {**password_by_role, "roles": ",".join(ROLES), "database": database}
    sets = "".join(f"\\set {name} '{value}'\n" for name, value in variables.items())
    run_psql(admin_dsn, query=sets + script, path=path)
    _build_walls(admin_dsn, database=database, path=path)


def create_own_database(
    *, admin_dsn: str, database: str, tenant: str, password_by_role: dict[str, str], path: str
) -> None:
    """Make a tenant's own database, and login roles that open no other; harmless when it exists."""
    script = (resources.files("noetl_cli.stack") / "own_database.sql").read_text("utf-8")
    suffix = build_role_suffix(tenant)
    variables = {
        "groups": ",".join(role for role in ROLES if role not in {OWNER_ROLE, TARGET_ROLE}),
        "passwords": codec.encode_json(password_by_role).decode(),
        "suffix": suffix,
        "database": database,
        "target": f"{TARGET_DATABASE}{suffix}",
        "target_role": TARGET_ROLE,
    }
    sets = "".join(f"\\set {name} '{value}'\n" for name, value in variables.items())
    # The database in the address may be the one that is to be made.
    server = urlunsplit(urlsplit(admin_dsn)._replace(path="/postgres"))
    run_psql(server, query=sets + script, path=path)
    _build_walls(admin_dsn, database=database, path=path)
    _name_reader(admin_dsn, database=database, tenant=tenant, path=path)


def _build_walls(admin_dsn: str, *, database: str, path: str) -> None:
    walls = (resources.files("noetl_cli.stack") / "walls.sql").read_text("utf-8")
    own_database = urlunsplit(urlsplit(admin_dsn)._replace(path=f"/{database}"))
    run_psql(own_database, query=walls, path=path)


def _name_reader(admin_dsn: str, *, database: str, tenant: str, path: str) -> None:
    script = (resources.files("noetl_cli.stack") / "own_reader.sql").read_text("utf-8")
    variables = {"database": database, "tenant": tenant, "note": f"NoETL tenant: {tenant}"}
    sets = "".join(f"\\set {name} '{value}'\n" for name, value in variables.items())
    own_database = urlunsplit(urlsplit(admin_dsn)._replace(path=f"/{database}"))
    run_psql(own_database, query=sets + script, path=path)


def run_psql(dsn: str, *, query: str, path: str) -> str:
    """Run statements through psql and return what they print."""
    environ = {
        "PATH": path,
        # Neither passwords nor addresses with passwords stand where `ps` shows them.
        "PGPASSWORD": unquote(urlsplit(dsn).password or ""),
        "PGCONNECT_TIMEOUT": "10",
        "PGOPTIONS": "-c client_min_messages=warning",
    }
    try:
        process = subprocess.run(  # noqa: S603 - our own program and a bare address
            [
                str(programs.find_postgres_tree() / "bin" / "psql"),
                "-XqAt",
                "-d",
                _strip_password(dsn),
            ],
            check=False,
            env=environ,
            input=query,
            capture_output=True,
            text=True,
            timeout=PSQL_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise StackError(
            f"PostgreSQL at {_strip_password(dsn)} did not answer in {PSQL_TIMEOUT_S} s.",
            way_out="See its log with: noetl logs postgres",
        ) from error
    if process.returncode != 0 or process.stderr:
        advice = "Check the address; its role must be allowed to create roles and databases."
        raise StackError(
            f"PostgreSQL at {_strip_password(dsn)} refused: {process.stderr.strip()}",
            way_out=health_check.FREE_IT if health_check.NO_ROOM in process.stderr else advice,
        )
    return process.stdout


def build_role_dsn(admin_dsn: str, *, role: str, password: str, database: str) -> str:
    """Spell the address of a database on the same server for another role."""
    parts = urlsplit(admin_dsn)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{role}:{password}@{host}", path=f"/{database}"))


def get_database_name(admin_dsn: str) -> str:
    """Name the database in an address."""
    return urlsplit(admin_dsn).path.lstrip("/") or DATABASE


def _strip_password(admin_dsn: str) -> str:
    parts = urlsplit(admin_dsn)
    user, at, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user.partition(':')[0]}{at}{host}"))
