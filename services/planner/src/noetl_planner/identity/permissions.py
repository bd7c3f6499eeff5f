"""Permissions and roles: the one table of who may do what."""

from enum import StrEnum

from noetl_contracts import spelling


class Permission(StrEnum):
    """What a route asks for."""

    SEE = "see executions"
    READ = "read payloads"
    RUN = "run playbooks"
    APPROVE = "approve"
    WRITE_PLAYBOOKS = "write playbooks"
    USE_CREDENTIALS = "use credentials"
    WRITE_CREDENTIALS = "write credentials"
    AUDIT = "audit"
    ADMINISTER = "administer"
    WORK = "work"


class Role(StrEnum):
    """A set of permissions."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    AUTHOR = "author"
    AUDITOR = "auditor"
    ADMIN = "admin"
    WORKER = "worker"


PERMISSIONS_BY_ROLE: dict[Role, frozenset[Permission]] = {
    Role.VIEWER: frozenset({Permission.SEE}),
    Role.OPERATOR: frozenset(
        {
            Permission.SEE,
            Permission.READ,
            Permission.RUN,
            Permission.APPROVE,
            Permission.USE_CREDENTIALS,
        }
    ),
    Role.AUTHOR: frozenset(
        {
            Permission.SEE,
            Permission.READ,
            Permission.RUN,
            Permission.WRITE_PLAYBOOKS,
            Permission.USE_CREDENTIALS,
        }
    ),
    Role.AUDITOR: frozenset({Permission.SEE, Permission.READ, Permission.AUDIT}),
    Role.ADMIN: frozenset(Permission) - {Permission.WORK},
    # Takes commands over HTTP and reports on them; it sees nothing else.
    Role.WORKER: frozenset({Permission.WORK}),
}


class UnknownRole(ValueError):  # noqa: N818 - it names what is wrong with a request
    """A text that names no role."""


def parse_role(text: str) -> Role:
    """Return the role that a text names; raises `UnknownRole` with the nearest one."""
    try:
        return Role(text)
    except ValueError:
        meant = spelling.suggest_or_list(text, list(Role), label="the roles are")
        raise UnknownRole(f"{text[:80]!r} is no role: {meant}") from None
