# ruff: noqa: E501 - the text of pages has the width of pages
"""The page of roles: its tables of permissions and of routes are made from the code."""

from noetl_planner.identity.permissions import PERMISSIONS_BY_ROLE, Permission, Role
from noetl_planner.identity.route_rules import RULES, AccessKind, Reach, RouteRule

_HEAD = """# Roles

Roles hold for an organization or a folder of playbooks:

```console
$ noetl key create ci --role operator --days 30
$ noetl role grant author ci --kind service_account --folder sales/eu
$ noetl role ls
$ noetl whoami
$ noetl role grant author data-team --kind group        # these need an identity provider
$ noetl role grant operator 8f3c... --folder sales/eu
```

Other clients send a token:

```sh
export AUTH="Authorization: Bearer $(cat "${NOETL_HOME:-$HOME/.local/state/noetl}/token")"   # of `noetl up`; else an API key
export API=http://127.0.0.1:8080   # as `noetl up` prints it
curl -H "$AUTH" "$API/api/auth/whoami"
```

People are named by their subject at the identity provider, groups by name. Keys are shown once, and stored as
hashes. Changes of roles count within 5 s. `NOETL_PLANNER_GROUP_ROLES=data-team:author,platform:admin` gives roles to
groups before anybody could. With `--all-organizations` a service account's key still opens one organization only.
The owner of the installation has all of them.

"""
_TENANTS = """
## Tenants

The roles say in which tenant and organization somebody acts. With roles in several, `X-NoETL-Tenant` and `X-NoETL-Organization`,
`NOETL_TENANT` and `NOETL_ORGANIZATION`, or a context choose one, else the oldest does. What lies in another tenant answers 404, as does a
playbook that no role shows. Only the owner learns that there is no such tenant (`no_tenant`). The first role makes it.

```console
$ noetl context add prod --server https://noetl.example.org --tenant acme --organization west
$ noetl context use prod
```

## Errors

```json
{"status": 401, "code": "not_signed_in", "hint": "sign in with noetl login, or send Authorization: Bearer TOKEN with an API key or the owner's token"}
{"status": 403, "code": "forbidden", "detail": "eve may not write credentials here (roles: viewer)"}
{"status": 429, "code": "too_many_requests", "detail": "ci calls more often than 500 times a second"}
```

`NOETL_PLANNER_CALLS_PER_S` bounds each principal (`Retry-After`).

## Routes

`folder`: a role for a folder is enough.

"""


def page() -> str:
    """Make the page."""
    roles = list(Role)
    head = "|permission|" + "|".join(roles) + "|\n|---|" + "---|" * len(roles) + "\n"
    rows = "".join(_permission(permission, roles) for permission in Permission)
    return f"{_HEAD}{head}{rows}{_TENANTS}```text\n{_routes()}```\n"


def _permission(permission: Permission, roles: list[Role]) -> str:
    marks = ("x" if permission in PERMISSIONS_BY_ROLE[role] else "" for role in roles)
    return f"|{permission}|" + "|".join(marks) + "|\n"


def _routes() -> str:
    lines = [
        f"{method:7}{path:47} {_asks(rule)}"
        for (method, path), rule in sorted(RULES.items(), key=lambda item: (item[0][1], item[0][0]))
    ]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _asks(rule: RouteRule) -> str:
    if rule.access_kind is not AccessKind.PERMISSION:
        return str(rule.access_kind)
    return f"{rule.permission}{', folder' if rule.reach is Reach.PATHS else ''}"
