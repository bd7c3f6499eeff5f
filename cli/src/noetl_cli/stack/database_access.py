"""Who may connect to a tenant's own database: its own roles, and nobody else."""

from importlib import resources

from noetl_cli.errors import StackError
from noetl_cli.stack.home_folder import options
from noetl_cli.stack.home_folder.home import StackHome
from noetl_cli.stack.processes.health_check import HealthCheck, Verdict
from noetl_cli.stack.servers import roles

NAME = "postgres doors"


def check_database_access(home: StackHome, dsn: str, *, path: str) -> list[HealthCheck]:
    """Name the roles of others that may connect, where the stack serves one tenant alone."""
    try:
        tenant = options.read_options(home).only_tenant
        if tenant is None:
            return []
        query = (resources.files("noetl_cli.stack") / "database_access.sql").read_text("utf-8")
        answer = roles.run_psql(dsn, query=query, path=path)
    except StackError as error:
        return [
            HealthCheck(name=NAME, verdict=Verdict.FAIL, found=error.message, way_out=error.way_out)
        ]
    suffix = roles.build_role_suffix(tenant)
    # The reader that `noetl tenant create` makes keeps more letters of a long name.
    readers = {f"noetl_tenant{suffix}", f"noetl_tenant_{tenant}"}
    own = {*(f"{role}{suffix}" for role in roles.ROLES), *readers}
    others = [role for role in answer.split() if role not in own]
    if not others:
        return [
            HealthCheck(name=NAME, verdict=Verdict.OK, found=f"open to roles of {tenant} alone")
        ]
    database = roles.get_database_name(dsn)
    return [
        HealthCheck(
            name=NAME,
            verdict=Verdict.FAIL,
            found=f"others may connect: {', '.join(others)}",
            way_out=f"Take it from them: revoke connect on database {database} from public, "
            f"{', '.join(others)}",
        )
    ]
