"""What a container task asks for, checked against what this worker gives."""

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from msgspec import Struct

from noetl_playbook.model import coercion
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.domain.secret_mask import SecretMask
from noetl_worker.domain.text_values import format_text
from noetl_worker.tools.calls.call import Call
from noetl_worker.tools.container.fields import build_invalid_failure
from noetl_worker.tools.container.images import check_image
from noetl_worker.tools.container.names import (
    DEADLINE_LABEL,
    KEY_LABEL,
    MANAGED_LABEL,
    OWNER_LABEL,
    RESULT_NAME,
    SOURCE,
    WORK_FOLDER,
)
from noetl_worker.tools.container.quantities import parse_cpus, parse_memory
from noetl_worker.tools.container.runtime import ContainerResources, ContainerSpec

NETWORK_SETTING = "NOETL_WORKER_CONTAINER_NETWORK_BY_TASK"
NAMESPACE_SETTING = "NOETL_WORKER_CONTAINER_NAMESPACE"
ACCOUNTS_SETTING = "NOETL_WORKER_CONTAINER_ACCOUNTS"
MEMORY_SETTING = "NOETL_WORKER_CONTAINER_MEMORY_BYTES_MAX"
CPUS_SETTING = "NOETL_WORKER_CONTAINER_CPUS_MAX"
SCRIPT_PATH = ".noetl/script"
_SHELL = "/bin/sh"
_TTL_S = 300
# What the start of a container and its end may take beside the time of the task.
_DEADLINE_MARGIN_S = 120
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_VARIABLE_BYTES_MAX = 120_000


class ContainerLimits(Struct, frozen=True, kw_only=True):
    """What containers may be and use."""

    images: tuple[str, ...] = ()
    containers_max: int = 4
    is_network_by_task: bool = False
    user: str = "10001:10001"
    memory_bytes: int = 512 * 1024**2
    memory_bytes_max: int = 4 * 1024**3
    cpus: float = 1.0
    cpus_max: float = 4.0
    collected_bytes_max: int = 64 * 1024**3
    grace_s: float = 5.0
    namespace: str = ""
    accounts: tuple[str, ...] = ()


def build_spec(
    call: Call, fields: dict[str, Any], limits: ContainerLimits, *, owner: str, now_s: float
) -> ContainerSpec:
    """Describe the container of a task; raises `ToolFailure`."""
    _check_account(fields, limits)
    resources = fields.get("resources") or {}
    maximum = _parse_limits(resources.get("limits") or {}, limits)
    command = tuple(fields.get("command") or ())
    if not command and fields.get("script") is not None:
        command = (_SHELL, f"{WORK_FOLDER}/{SCRIPT_PATH}")
    deadline_s = int(now_s + call.timeout.total) + _DEADLINE_MARGIN_S
    ttl_s = fields.get("ttl_seconds_after_finished")
    return ContainerSpec(
        image=check_image(fields["image"], limits.images),
        command=command,
        args=tuple(fields.get("args") or ()),
        environ=_parse_environ(fields.get("env")),
        attempt_key=call.attempt_key,
        labels=_build_labels(call, owner=owner, deadline_s=deadline_s),
        deadline_s=deadline_s,
        timeout_s=call.timeout.total,
        resources=maximum,
        requests=_parse_requests(resources.get("requests") or {}, maximum),
        has_network=_parse_network(fields, limits),
        user=limits.user,
        service_account=fields.get("service_account") or "",
        ttl_s=_TTL_S if ttl_s is None else ttl_s,
    )


def check_secrets(spec: ContainerSpec, mask: SecretMask) -> None:
    """Refuse credentials where the runtime shows them to others; raises `ToolFailure`."""
    for name, texts in (("command", spec.command), ("args", spec.args), ("image", (spec.image,))):
        if any(mask.contains_secret(text) for text in texts):
            raise build_invalid_failure(
                f"field '{name}' holds a credential, which who lists containers would see: pass "
                "it by 'env'"
            )


def parse_file_path(path_text: str) -> str:
    """Return the path of a file in the container's folder; raises `ToolFailure`."""
    path = PurePosixPath(path_text)
    if path.is_absolute():
        if not path.is_relative_to(WORK_FOLDER):
            raise build_invalid_failure(
                f"field 'files': {path_text!r:.120} lies outside of {WORK_FOLDER}, the one folder "
                f"that a container may write: name it '{path.name}' or '{WORK_FOLDER}/{path.name}'"
            )
        path = path.relative_to(WORK_FOLDER)
    is_inside = path.parts and ".." not in path.parts and "\0" not in path_text
    if not is_inside or path.parts[0] == RESULT_NAME:
        raise build_invalid_failure(
            f"field 'files': {path_text!r:.120} is no path of a file of a task"
        )
    return path.as_posix()


def list_unused_fields(fields: dict[str, Any]) -> list[str]:
    """Name the fields of Jobs that have no effect, as the engine itself tries tasks again."""
    unused = ["backoff_limit"] if fields.get("backoff_limit") else []
    return unused + (["restart_policy"] if fields.get("restart_policy") == "OnFailure" else [])


def _parse_limits(limit_fields: Mapping[str, Any], limits: ContainerLimits) -> ContainerResources:
    memory_bytes = _parse_quantity(limit_fields, "memory", parse_memory, limits.memory_bytes)
    cpus = _parse_quantity(limit_fields, "cpu", parse_cpus, limits.cpus)
    if unknown_keys := sorted(limit_fields.keys() - {"memory", "cpu"}):
        raise build_invalid_failure(
            f"field 'resources.limits.{unknown_keys[0]}' is not known: use memory and cpu"
        )
    if memory_bytes > limits.memory_bytes_max:
        _refuse_amount("memory", memory_bytes, limits.memory_bytes_max, MEMORY_SETTING)
    if cpus > limits.cpus_max:
        _refuse_amount("cpu", cpus, limits.cpus_max, CPUS_SETTING)
    return ContainerResources(memory_bytes=memory_bytes, cpus=cpus)


def _parse_requests(
    request_fields: Mapping[str, Any], maximum: ContainerResources
) -> ContainerResources:
    memory_bytes = _parse_quantity(request_fields, "memory", parse_memory, maximum.memory_bytes)
    cpus = _parse_quantity(request_fields, "cpu", parse_cpus, maximum.cpus)
    if memory_bytes > maximum.memory_bytes or cpus > maximum.cpus:
        raise build_invalid_failure("field 'resources.requests' is more than 'resources.limits'")
    return ContainerResources(memory_bytes=memory_bytes, cpus=cpus)


def _parse_quantity(quantity_fields: Mapping[str, Any], name: str, parse: Any, default: Any) -> Any:
    if quantity_fields.get(name) is None:
        return default
    quantity = parse(quantity_fields[name])
    if quantity is None:
        raise build_invalid_failure(
            f"field 'resources': {quantity_fields[name]!r:.80} is no amount of {name}: write "
            "it as in {memory: 512Mi, cpu: 500m}"
        )
    return quantity


def _refuse_amount(name: str, amount: float, amount_max: float, setting: str) -> None:
    text = f"field 'resources.limits.{name}' asks for {amount:,}: {setting} allows {amount_max:,}"
    raise ToolFailure(build_error("config", text, source=SOURCE))


def _parse_network(fields: dict[str, Any], limits: ContainerLimits) -> bool:
    field_value = fields.get("network")
    if field_value is None:
        return False
    is_wanted = coercion.coerce_boolean(field_value)
    if is_wanted is None:
        raise build_invalid_failure(
            f"field 'spec.network': {field_value!r:.80} is neither true nor false"
        )
    if is_wanted and not limits.is_network_by_task:
        text = (
            "spec.network: true asks for the network, which this worker gives to no container: "
            f"{NETWORK_SETTING}=true allows tasks to ask for it"
        )
        raise ToolFailure(build_error("config", text, source=SOURCE))
    return is_wanted


def _check_account(fields: dict[str, Any], limits: ContainerLimits) -> None:
    namespace, account = fields.get("namespace"), fields.get("service_account")
    if namespace and limits.namespace and namespace != limits.namespace:
        text = (
            f"field 'namespace': this worker's containers run in {limits.namespace!r}, and not in "
            f"{namespace!r:.80}: {NAMESPACE_SETTING} says where"
        )
        raise ToolFailure(build_error("config", text, source=SOURCE))
    if account and account not in limits.accounts:
        text = (
            f"field 'service_account': {account!r:.80} is not allowed on this worker: "
            f"{ACCOUNTS_SETTING} names those that tasks may use"
        )
        raise ToolFailure(build_error("config", text, source=SOURCE))


def _parse_environ(env: Any) -> dict[str, str]:
    pairs = (
        env.items() if isinstance(env, dict) else ((e["name"], e.get("value")) for e in env or ())
    )
    environ = {name: format_text(value) for name, value in pairs if value is not None}
    for name, value in environ.items():
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise build_invalid_failure(f"field 'env': {name!r:.80} is not the name of a variable")
        if "\0" in value or len(value.encode()) > _VARIABLE_BYTES_MAX:
            raise build_invalid_failure(
                f"field 'env': '{name}' holds NUL characters, or more than "
                f"{_VARIABLE_BYTES_MAX:,} bytes: pass data by 'files'"
            )
    return environ


def _build_labels(call: Call, *, owner: str, deadline_s: int) -> dict[str, str]:
    site = call.site
    return {
        MANAGED_LABEL: call.task,
        KEY_LABEL: call.attempt_key,
        OWNER_LABEL: owner,
        DEADLINE_LABEL: str(deadline_s),
        "noetl.io/execution": site.execution_id,
        "noetl.io/tenant": site.tenant_id,
        "noetl.io/organization": site.organization_id,
        "noetl.io/step": site.step,
        "noetl.io/unit": site.unit if site.row_index is None else f"{site.unit}/{site.row_index}",
        "noetl.io/attempt": str(call.attempt),
    }


def format_content(content: Any) -> bytes:
    """Write the content of a file: a text as it is, other values as JSON."""
    return b"" if content is None else format_text(content).encode()
