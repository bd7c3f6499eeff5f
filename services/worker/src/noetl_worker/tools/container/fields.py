"""The fields of a container task: what is nested is merged, and each is checked."""

from typing import Any

from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.tools.container.names import SOURCE

_FIELDS = frozenset(
    {
        *("image", "command", "args", "env", "files", "script", "namespace", "service_account"),
        *("resources", "backoff_limit", "restart_policy", "ttl_seconds_after_finished"),
    }
)
_NESTED = ("runtime", "job")
_SPELLINGS = {
    "serviceAccount": "service_account",
    "serviceAccountName": "service_account",
    "backoffLimit": "backoff_limit",
    "restartPolicy": "restart_policy",
    "ttlSecondsAfterFinished": "ttl_seconds_after_finished",
}
_RESTART_POLICIES = frozenset({"Never", "OnFailure"})


def merge_fields(inputs: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Merge `runtime` and `job` and the older spellings; what stands on the task wins.

    Inputs fill what is left out. Raises `ToolFailure`.
    """
    merged_fields: dict[str, Any] = {}
    for name in _NESTED:
        nested = fields.get(name)
        if nested is not None and not isinstance(nested, dict):
            raise build_invalid_failure(f"field '{name}' must be a mapping")
        for key, item in (nested or {}).items():
            canonical = _SPELLINGS.get(key, key)
            if canonical not in _FIELDS:
                raise build_invalid_failure(
                    f"field '{name}.{key}' is not a field of kind container"
                )
            merged_fields[canonical] = item
    merged_fields.update(
        (key, item) for key, item in fields.items() if key not in _NESTED and item is not None
    )
    return {**{key: inputs[key] for key in _FIELDS if key in inputs}, **merged_fields}


def check_fields(fields: dict[str, Any]) -> None:
    """Check merged fields; raises `ToolFailure` naming the first that makes no sense."""
    if not isinstance(fields.get("image"), str) or not fields["image"]:
        raise build_invalid_failure("field 'image' must name an image")
    for name in ("command", "args"):
        value = fields.get(name)
        is_texts = isinstance(value, list) and all(isinstance(item, str) for item in value)
        if value is not None and not is_texts:
            raise build_invalid_failure(f"field '{name}' must be a list of texts")
    _check_env(fields.get("env"))
    _check_files(fields.get("files"))
    resources = fields.get("resources")
    if resources is not None and not _is_mapping_of(resources, {"requests", "limits"}):
        raise build_invalid_failure(
            "field 'resources' must be a mapping of 'requests' and 'limits'"
        )
    for name in ("backoff_limit", "ttl_seconds_after_finished"):
        value = fields.get(name)
        if value is not None and (type(value) is not int or value < 0):
            raise build_invalid_failure(f"field '{name}' must be a whole number of at least 0")
    policy = fields.get("restart_policy", "Never")
    if not isinstance(policy, str) or policy not in _RESTART_POLICIES:
        raise build_invalid_failure("field 'restart_policy' must be Never or OnFailure")


def _check_env(env: Any) -> None:
    if env is None or isinstance(env, dict):
        return
    is_pairs = isinstance(env, list) and all(
        _is_mapping_of(item, {"name", "value"}) and isinstance(item.get("name"), str)
        for item in env
    )
    if not is_pairs:
        raise build_invalid_failure("field 'env' must be a mapping or a list of {name, value}")


def _check_files(files: Any) -> None:
    if files is None:
        return
    is_files = isinstance(files, list) and all(
        _is_mapping_of(item, {"path", "content", "script"})
        and isinstance(item.get("path"), str)
        and len(item.keys() & {"content", "script"}) == 1
        for item in files
    )
    if not is_files:
        raise build_invalid_failure(
            "field 'files' must be a list of {path, content} or {path, script}"
        )


def _is_mapping_of(value: Any, names: set[str]) -> bool:
    return isinstance(value, dict) and value.keys() <= names


def build_invalid_failure(text: str) -> ToolFailure:
    """Say which field makes no sense."""
    return ToolFailure(build_error("validation", text, source=SOURCE))
