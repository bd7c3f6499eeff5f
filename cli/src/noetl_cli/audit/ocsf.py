"""Administration records as events of the Open Cybersecurity Schema Framework (OCSF 1.3.0).

Roles that are given and taken away are User Access Management (class 3005), all else is API
Activity (class 6003); see https://schema.ocsf.io/1.3.0.
"""

from datetime import datetime
from importlib.metadata import version
from typing import Any

SCHEMA_VERSION = "1.3.0"
_API_ACTIVITY, _USER_ACCESS = 6003, 3005
_CATEGORY_BY_CLASS = {_API_ACTIVITY: 6, _USER_ACCESS: 3}
_CREATE, _UPDATE, _DELETE, _OTHER = 1, 3, 4, 99
_ASSIGN, _REVOKE = 1, 2
_SUCCESS, _FAILURE = 1, 2
_INFORMATIONAL, _MEDIUM = 1, 3
_ENDS = {
    "created": _CREATE,
    "registered": _CREATE,
    "placed": _CREATE,
    "written": _UPDATE,
    "set": _UPDATE,
    "paused": _UPDATE,
    "resumed": _UPDATE,
    "removed": _DELETE,
    "revoked": _DELETE,
    "released": _DELETE,
}
_USER_TYPES = {"person": 1, "owner": 2, "service": 3, "service_account": 3, "worker": 3}


def build_ocsf_event(record: dict[str, Any], *, tenant: str, organization: str) -> dict[str, Any]:
    """Build one OCSF event of a record as `GET /api/audit` shows it."""
    class_uid, activity = _classify(record["action"])
    is_done = record["outcome"] == "done"
    return {
        "metadata": {
            "version": SCHEMA_VERSION,
            "product": {
                "name": "NoETL",
                "vendor_name": "NoETL",
                "version": version("noetl"),
            },
            "uid": f"{tenant}/{organization}/{record['version']}",
            "tenant_uid": tenant,
            "sequence": record["version"],
        },
        "category_uid": _CATEGORY_BY_CLASS[class_uid],
        "class_uid": class_uid,
        "activity_id": activity,
        "type_uid": class_uid * 100 + activity,
        "severity_id": _INFORMATIONAL if is_done else _MEDIUM,
        "status_id": _SUCCESS if is_done else _FAILURE,
        "time": int(datetime.fromisoformat(record["at"]).timestamp() * 1000),
        "actor": {"user": _build_user(record["actor"])},
        "api": {"operation": record["action"], "service": {"name": "noetl-planner"}},
        "src_endpoint": {"name": record["actor"].get("via", "api")},
        "resources": [{"name": record["target"], "namespace": organization}],
        "unmapped": {"details": record["details"], "checksum": record["checksum"]},
    }


def _classify(action: str) -> tuple[int, int]:
    if action == "role.granted":
        return _USER_ACCESS, _ASSIGN
    if action == "role.revoked":
        return _USER_ACCESS, _REVOKE
    return _API_ACTIVITY, _ENDS.get(action.rpartition(".")[2], _OTHER)


def _build_user(actor: dict[str, Any]) -> dict[str, Any]:
    user: dict[str, Any] = {
        "uid": actor.get("id", ""),
        "name": actor.get("name", ""),
        "type_id": _USER_TYPES.get(actor["kind"], 99),
        "type": actor["kind"],
    }
    if actor.get("issuer"):
        user["domain"] = actor["issuer"]
    if actor.get("key_prefix"):
        user["credential_uid"] = actor["key_prefix"]
    return user
