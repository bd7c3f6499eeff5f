"""Route rules: the permission that each route of the API asks for. A route without one is refused.

The documentation's table of routes is made from this one, and a test walks every route with every
role against it.
"""

from enum import StrEnum

from msgspec import Struct

from noetl_planner.identity.permissions import Permission


class AccessKind(StrEnum):
    """Who may come to a route before any permission is asked for."""

    # Everybody: what it answers is no secret, or it checks a signature or token by itself.
    PUBLIC = "public"
    # Everybody who has proved an identity, with any roles or none.
    SIGNED_IN = "signed in"
    # Those with a permission.
    PERMISSION = "permission"


class Reach(StrEnum):
    """What a route is about: playbooks by their paths, or all of an organization."""

    # The handler checks the path of each playbook or execution: a role for a folder is enough.
    PATHS = "paths"
    # A role for a folder of playbooks is not enough.
    WHOLE = "whole"


class RouteRule(Struct, frozen=True, kw_only=True):
    """What a route asks of who calls it."""

    access_kind: AccessKind = AccessKind.PERMISSION
    permission: Permission | None = None
    reach: Reach = Reach.WHOLE


PUBLIC = RouteRule(access_kind=AccessKind.PUBLIC)
SIGNED_IN = RouteRule(access_kind=AccessKind.SIGNED_IN)


def _of_paths(permission: Permission) -> RouteRule:
    return RouteRule(permission=permission, reach=Reach.PATHS)


_SEE = _of_paths(Permission.SEE)
_READ = _of_paths(Permission.READ)
_RUN = _of_paths(Permission.RUN)
_APPROVE = _of_paths(Permission.APPROVE)
_WRITE = _of_paths(Permission.WRITE_PLAYBOOKS)
_AUDIT = _of_paths(Permission.AUDIT)
_SEE_ALL = RouteRule(permission=Permission.SEE)
_READ_ALL = RouteRule(permission=Permission.READ)
_WRITE_ALL = RouteRule(permission=Permission.WRITE_PLAYBOOKS)
_RUN_ALL = RouteRule(permission=Permission.RUN)
_AUDIT_ALL = RouteRule(permission=Permission.AUDIT)
_USE_CREDENTIALS = RouteRule(permission=Permission.USE_CREDENTIALS)
_WRITE_CREDENTIALS = RouteRule(permission=Permission.WRITE_CREDENTIALS)
_ADMINISTER = RouteRule(permission=Permission.ADMINISTER)
_WORK = RouteRule(permission=Permission.WORK)

_EXECUTION = "/api/executions/{execution_id}"

RULES: dict[tuple[str, str], RouteRule] = {
    ("GET", "/"): PUBLIC,
    ("GET", "/api/health"): PUBLIC,
    # Of all tenants: the handler asks whether the organization is the installation's own.
    ("GET", "/api/health/services"): _ADMINISTER,
    ("GET", "/schema"): SIGNED_IN,
    ("GET", "/schema/openapi.json"): SIGNED_IN,
    ("GET", "/schema/{path}"): SIGNED_IN,
    ("GET", "/api/auth/whoami"): SIGNED_IN,
    # How to sign in, and the way of browsers through it, which checks its own cookies.
    ("GET", "/api/auth/config"): PUBLIC,
    ("GET", "/auth/login"): PUBLIC,
    ("GET", "/auth/callback"): PUBLIC,
    ("GET", "/auth/session"): PUBLIC,
    ("POST", "/auth/logout"): PUBLIC,
    # A browser's session for a code of `noetl open`, or for a token, which the handler looks at.
    ("POST", "/auth/session"): PUBLIC,
    ("POST", "/auth/codes"): SIGNED_IN,
    # The console's files, which say nothing; its pages ask the routes below.
    ("GET", "/console"): PUBLIC,
    ("GET", "/console/{path}"): PUBLIC,
    # Executions.
    ("POST", "/api/execute"): _RUN,
    ("POST", "/api/executions"): _RUN,
    ("GET", "/api/executions"): _SEE,
    ("GET", _EXECUTION): _SEE,
    ("GET", f"{_EXECUTION}/status"): _SEE,
    ("GET", f"{_EXECUTION}/events"): _SEE,
    ("GET", f"{_EXECUTION}/stages"): _SEE,
    ("GET", f"{_EXECUTION}/frames"): _SEE,
    ("GET", f"{_EXECUTION}/frames/{{frame_id}}"): _SEE,
    ("GET", f"{_EXECUTION}/frames/{{frame_id}}/rows"): _READ,
    ("GET", f"{_EXECUTION}/steps"): _SEE,
    ("GET", f"{_EXECUTION}/moment"): _SEE,
    ("GET", f"{_EXECUTION}/moment/stream"): _SEE,
    ("GET", f"{_EXECUTION}/difference"): _SEE,
    ("GET", f"{_EXECUTION}/moments/difference"): _AUDIT,
    ("GET", f"{_EXECUTION}/stream"): _SEE,
    ("GET", f"{_EXECUTION}/logs"): _SEE,
    ("GET", f"{_EXECUTION}/logs/stream"): _SEE,
    ("GET", f"{_EXECUTION}/items"): _READ,
    ("GET", f"{_EXECUTION}/items/{{step}}"): _READ,
    ("GET", f"{_EXECUTION}/checks"): _SEE,
    ("GET", f"{_EXECUTION}/trace/{{step}}"): _READ,
    ("GET", f"{_EXECUTION}/lineage"): _AUDIT,
    ("POST", f"{_EXECUTION}/cancel"): _RUN,
    ("POST", f"{_EXECUTION}/pause"): _RUN,
    ("POST", f"{_EXECUTION}/resume"): _RUN,
    ("POST", f"{_EXECUTION}/rerun"): _RUN,
    ("POST", f"{_EXECUTION}/fork"): _RUN,
    # Nothing is run; what it reads are results.
    ("POST", f"{_EXECUTION}/counterfactual"): _READ,
    ("GET", f"{_EXECUTION}/counterfactual"): _READ,
    ("POST", "/api/files/chunks"): _RUN,
    ("GET", "/api/vars/{execution_id}"): _READ,
    ("GET", "/api/vars/{execution_id}/{name}"): _READ,
    ("PUT", "/api/vars/{execution_id}/{name}"): _RUN,
    ("DELETE", "/api/vars/{execution_id}/{name}"): _RUN,
    # Results.
    ("GET", "/api/result/{execution_id}/list"): _READ,
    ("GET", "/api/result/{execution_id}/stats"): _READ,
    ("GET", "/api/result/{execution_id}/{step}"): _READ,
    ("GET", f"{_EXECUTION}/result/{{step}}"): _READ,
    ("GET", "/api/result/resolve"): _READ_ALL,
    ("GET", "/api/checks"): _SEE,
    ("GET", "/api/objects"): _READ_ALL,
    ("GET", "/api/objects/{object_type}/{key}"): _READ_ALL,
    # Playbooks, and what starts them.
    ("POST", "/api/catalog/register"): _WRITE,
    ("POST", "/api/catalog/register/folder"): _WRITE,
    ("POST", "/api/catalog/check"): _SEE,
    ("GET", "/api/catalog"): _SEE,
    ("GET", "/api/catalog/{path}"): _SEE,
    ("GET", "/api/playbooks/{path}"): _SEE,
    ("GET", "/api/schedules"): _SEE,
    ("GET", "/api/schedules/{name}"): _SEE,
    ("POST", "/api/schedules"): _WRITE,
    ("PUT", "/api/schedules/{name}"): _WRITE,
    ("DELETE", "/api/schedules/{name}"): _WRITE,
    ("POST", "/api/schedules/{name}/pause"): _WRITE,
    ("POST", "/api/schedules/{name}/resume"): _WRITE,
    ("POST", "/api/schedules/{name}/run"): _RUN,
    ("GET", "/api/triggers"): _SEE,
    ("GET", "/api/triggers/{name}"): _SEE,
    ("PUT", "/api/triggers/{name}"): _WRITE,
    ("DELETE", "/api/triggers/{name}"): _WRITE,
    # A rule sees the ends of all executions that its pattern covers.
    ("GET", "/api/notifications"): _SEE_ALL,
    ("GET", "/api/notifications/log"): _SEE_ALL,
    ("PUT", "/api/notifications/{name}"): _WRITE_ALL,
    ("DELETE", "/api/notifications/{name}"): _WRITE_ALL,
    ("POST", "/api/notifications/{name}/test"): _RUN_ALL,
    ("GET", "/api/webhooks"): _SEE,
    ("GET", "/api/webhooks/{name}"): _SEE,
    ("PUT", "/api/webhooks/{name}"): _WRITE,
    ("DELETE", "/api/webhooks/{name}"): _WRITE,
    # The call is signed; a webhook without a credential asks for the permission to run.
    ("POST", "/api/webhooks/{name}"): PUBLIC,
    ("GET", "/api/state"): _SEE,
    ("GET", "/api/state/value"): _SEE,
    ("GET", "/api/state/history"): _SEE,
    ("PUT", "/api/state/value"): _RUN,
    ("DELETE", "/api/state/value"): _RUN,
    # Streams of all playbooks share the names of checkpoints.
    ("DELETE", "/api/state/checkpoints/{name}"): _RUN_ALL,
    # Messages. The token of a callback is what opens it.
    ("POST", "/api/callbacks/{token}"): PUBLIC,
    ("POST", "/api/signals/{correlation_key}"): _RUN_ALL,
    ("GET", "/api/approvals"): _SEE_ALL,
    ("POST", "/api/approvals/{approval_id}"): _APPROVE,
    # Credentials: names and fields, never a value.
    ("GET", "/api/credentials"): _USE_CREDENTIALS,
    ("GET", "/api/credentials/{name}"): _USE_CREDENTIALS,
    ("POST", "/api/credentials/{name}/test"): _USE_CREDENTIALS,
    ("POST", "/api/credentials"): _WRITE_CREDENTIALS,
    ("DELETE", "/api/credentials/{name}"): _WRITE_CREDENTIALS,
    # Proof.
    ("GET", "/api/replay/state"): _AUDIT,
    ("GET", "/api/replay/diff"): _AUDIT,
    ("GET", "/api/replay/events"): _AUDIT,
    ("GET", "/api/replay/payloads"): _AUDIT,
    # Who may audit may read payloads too: each such role has both.
    ("GET", "/api/replay/contents"): _AUDIT,
    ("GET", "/api/replay/log-chunks"): _AUDIT,
    ("GET", "/api/replay/live"): _AUDIT,
    ("GET", "/api/replay/density"): _AUDIT,
    ("GET", "/api/audit"): _AUDIT_ALL,
    ("GET", "/api/audit/check"): _AUDIT_ALL,
    ("GET", "/api/audit/heads"): _AUDIT_ALL,
    ("GET", "/api/audit/executions/{execution_id}"): _AUDIT,
    # Administration.
    ("GET", "/api/pools"): _SEE_ALL,
    ("GET", "/api/workers"): _SEE_ALL,
    ("GET", "/api/workers/leases"): _SEE_ALL,
    ("GET", "/api/dead-letters"): _ADMINISTER,
    ("GET", "/api/dead-letters/log"): _ADMINISTER,
    ("GET", "/api/dead-letters/{sequence}"): _ADMINISTER,
    ("POST", "/api/dead-letters/{sequence}/requeue"): _ADMINISTER,
    ("POST", "/api/dead-letters/{sequence}/drop"): _ADMINISTER,
    ("GET", "/api/retention/holds"): _ADMINISTER,
    ("POST", "/api/retention/holds"): _ADMINISTER,
    ("POST", "/api/retention/holds/release"): _ADMINISTER,
    ("GET", "/api/retention/policy"): _ADMINISTER,
    ("PUT", "/api/retention/policy"): _ADMINISTER,
    ("GET", "/api/retention/units"): _ADMINISTER,
    ("GET", "/api/quotas"): _ADMINISTER,
    ("PATCH", "/api/quotas/{tenant}"): _ADMINISTER,
    ("POST", "/api/tenants/{tenant}/suspend"): _ADMINISTER,
    ("POST", "/api/tenants/{tenant}/resume"): _ADMINISTER,
    ("GET", "/api/roles"): _ADMINISTER,
    ("POST", "/api/roles"): _ADMINISTER,
    ("DELETE", "/api/roles/{binding_id}"): _ADMINISTER,
    ("GET", "/api/keys"): _ADMINISTER,
    ("POST", "/api/keys"): _ADMINISTER,
    ("DELETE", "/api/keys/{key_prefix}"): _ADMINISTER,
    # Workers that ask for their commands over HTTP.
    ("POST", "/api/commands/claim"): _WORK,
    ("POST", "/api/commands/{command_id}/heartbeat"): _WORK,
    ("POST", "/api/commands/{command_id}/complete"): _WORK,
    ("POST", "/api/commands/{command_id}/fail"): _WORK,
    ("POST", "/api/commands/{command_id}/release"): _WORK,
    ("POST", "/api/stages/{stage_id}/frames/claim"): _WORK,
    ("POST", "/api/frames/{frame_id}/heartbeat"): _WORK,
    ("POST", "/api/frames/{frame_id}/commit"): _WORK,
}

# What a tenant begins with. Who may act in every tenant is told of all other routes that there is
# no such tenant: a name that was mistyped would look like a tenant with nothing in it.
MAKING_TENANTS = frozenset(
    {
        ("POST", "/api/roles"),
        ("POST", "/api/keys"),
        ("POST", "/api/credentials"),
        ("POST", "/api/catalog/register"),
        ("POST", "/api/catalog/register/folder"),
    }
)


def find_rule(method: str, path: str) -> RouteRule | None:
    """Return the rule of a route; of `OPTIONS`, which lists methods, who is signed in may know."""
    return SIGNED_IN if method == "OPTIONS" else RULES.get((method, path))
