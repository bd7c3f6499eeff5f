"""Loads the settings of a service from its environment variables into one frozen value."""

import platform
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import unquote

import msgspec
from msgspec import Meta, Struct

from noetl_chassis import failpoints
from noetl_contracts import spelling
from noetl_contracts.commands.placement import NAME_CHARACTERS_MAX

S = TypeVar("S", bound=Struct)

PlaceName = Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX)]

MASK = "***"
# The deployment's name for what planner and worker both show to templates.
TEMPLATE_ENV = "NOETL_TEMPLATE_ENV"
# Whether the API asks who calls it: the same for every process of a deployment.
AUTH = "NOETL_AUTH"
# Variables without a service's prefix, and the fields that they fill.
_EVERYONES = {
    TEMPLATE_ENV: "template_env",
    AUTH: "auth",
    failpoints.VARIABLE: "failpoints",
    failpoints.ONCE_VARIABLE: "failpoints_once",
}
_SECRET_NAME = re.compile(r"(?:_|^)(?:key|password|secret|token|passphrase)$")
# The one says whose key a secret is, the other names a Secret of Kubernetes.
_IDENTIFIERS = ("access_key", "spark_secret")
_USERINFO = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_DSN_PASSWORD = re.compile(r"(?<=password=)(?:'[^']*'|\S+)")
# What a cluster tells every pod of a Service noetl-planner, names after the prefix and values:
# NOETL_PLANNER_SERVICE_HOST=10.0.0.7 and NOETL_PLANNER_PORT_8080_TCP=tcp://10.0.0.7:8080.
_ADDRESS, _NUMBER, _PROTOCOL = r"[0-9a-f.:]+", r"\d+", r"(?:tcp|udp|sctp)"
_SERVICE_LINKS = tuple(
    (re.compile(name), re.compile(value))
    for name, value in (
        (r"service_host", _ADDRESS),
        (r"service_port(?:_[a-z0-9_]+)?", _NUMBER),
        (rf"port(?:_\d+_{_PROTOCOL})?", rf"{_PROTOCOL}://\S+:\d+"),
        (rf"port_\d+_{_PROTOCOL}_addr", _ADDRESS),
        (rf"port_\d+_{_PROTOCOL}_port", _NUMBER),
        (rf"port_\d+_{_PROTOCOL}_proto", _PROTOCOL),
    )
)


class SettingsError(Exception):
    """The environment does not describe a runnable service."""


class ServiceSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every service is told; a service's own settings extend it."""

    nats_url: str
    # Empty: made from the host's name, the process id and a random part.
    instance: str = ""
    tenant_id: str = "default"
    organization_id: str = "default"
    health_host: str = "127.0.0.1"
    # 0 takes any free port.
    health_port: Annotated[int, Meta(ge=0, le=65535)] = 0
    log_format: Literal["json", "console"] = "json"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    # Traces, metrics and logs also go here when the `otlp` extra is installed.
    otlp_endpoint: str = ""
    # For tests: what happens at which point, and a folder to let each happen once in all processes.
    failpoints: str = ""
    failpoints_once: str = ""
    # Where it runs, as far as that is known.
    cluster: PlaceName = ""
    region: PlaceName = ""
    zone: PlaceName = ""
    # A worker without one takes the machine's name. Workers of one node share its memory.
    node: PlaceName = ""


def get_process_locality(config: ServiceSettings) -> dict[str, str]:
    """Say where a process is; the machine's name stands for a node that is not named."""
    name_by_place = {
        "cluster": config.cluster,
        "region": config.region,
        "zone": config.zone,
        "node": config.node or platform.node() or "localhost",
    }
    return {key: name for key, name in name_by_place.items() if name}


def load_settings(kind: type[S], *, prefix: str, environ: Mapping[str, str]) -> S:
    """Read `<prefix><FIELD>` variables into `kind`; refuse unknown and ill-typed ones.

    All that is wrong is said at once, a line each. What a cluster says of a Service of the same
    name is no setting. An empty variable counts as absent; a field that holds a tuple is separated
    by commas. A field that holds a mapping names variables, separated by commas, and receives those
    that are set.
    """
    settings = {
        name.removeprefix(prefix).lower(): value
        for name, value in environ.items()
        if name.startswith(prefix) and value != ""
    }
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    settings = {
        name: value
        for name, value in settings.items()
        if name in fields or not _is_service_link(name, value)
    }
    problems = _list_unknown(settings, list(fields), prefix)
    for name, field in _EVERYONES.items():
        if environ.get(name) and field in fields:
            settings.setdefault(field, environ[name])
    plain = {
        name: _split_value(value, fields[name].type, environ)
        for name, value in settings.items()
        if name in fields
    }
    try:
        config = msgspec.convert(plain, kind, strict=False)
    except msgspec.ValidationError as failure:
        problems += _list_problems(plain, fields, prefix) or [f"{prefix}*: {failure}"]
        raise SettingsError("\n".join(problems)) from failure
    if problems:
        raise SettingsError("\n".join(problems))
    read_failpoint_plan(config)
    return config


def read_failpoint_plan(config: Struct) -> failpoints.FailpointPlan | None:
    """Read a service's failpoints, None where there are none; raises `SettingsError`."""
    if not isinstance(config, ServiceSettings):
        return None
    try:
        return failpoints.parse_plan(config.failpoints, once=config.failpoints_once)
    except failpoints.FailpointSpellingError as failure:
        raise SettingsError(f"{failpoints.VARIABLE}: {failure}.") from failure


def render_settings(settings: Struct, *, prefix: str) -> list[str]:
    """Print every variable with its value, secrets masked, and how it differs from its default."""
    lines = []
    for field in msgspec.structs.fields(settings):
        value = getattr(settings, field.name)
        note = "" if value == _get_default(field) else f"  (default {_describe_default(field)})"
        lines.append(f"{prefix}{field.name.upper()}={mask_value(field.name, value)}{note}")
    return lines


def mask_value(name: str, value: Any) -> str:
    """Spell a value for people: secrets by name are hidden, passwords in addresses too."""
    # Of a mapping the names alone: its values are other programs' business.
    text = ",".join(map(str, value)) if isinstance(value, tuple | list | dict) else str(value)
    if _SECRET_NAME.search(name) and value:
        return MASK
    return mask_addresses(text)


def list_secrets(settings: Struct) -> list[str]:
    """List the secrets among settings: keys, and passwords inside addresses, in each spelling."""
    secrets: list[str] = []
    for field in msgspec.structs.fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, dict):
            # Variables that are named so that their values are secrets to others.
            secrets += (
                value.values() if _SECRET_NAME.search(field.name.removesuffix("_env")) else ()
            )
        elif isinstance(value, str):
            secrets += _list_secrets_of_text(field.name, value)
    return [secret for secret in secrets if secret]


def _list_secrets_of_text(name: str, text: str) -> list[str]:
    if _SECRET_NAME.search(name) and not name.endswith(_IDENTIFIERS):
        # A list of keys has a name before each.
        return [part for key in text.split(",") for part in {key, key.rpartition(":")[2]}]
    quoted = [userinfo.partition(":")[2] or userinfo for userinfo in _USERINFO.findall(text)]
    stated = [password.strip("'") for password in _DSN_PASSWORD.findall(text)]
    return [*quoted, *(unquote(password) for password in quoted), *stated]


def mask_addresses(text: str) -> str:
    """Hide user and password in every address, and the password in a libpq string."""
    return _DSN_PASSWORD.sub(MASK, _USERINFO.sub(MASK, text))


def _get_default(field: Any) -> Any:
    is_made = field.default_factory is not msgspec.NODEFAULT
    return field.default_factory() if is_made else field.default


def _describe_default(field: Any) -> str:
    default = _get_default(field)
    if default is msgspec.NODEFAULT:
        return "none: must be set"
    return mask_value(field.name, default) or "empty"


def _list_unknown(
    values_by_name: Mapping[str, str], known_names: list[str], prefix: str
) -> list[str]:
    problems = []
    for name in values_by_name:
        if name in known_names:
            continue
        nearest_name = spelling.find_nearest_word(name, known_names)
        advice = (
            "remove it."
            if nearest_name is None
            else f"did you mean {prefix}{nearest_name.upper()}?"
        )
        problems.append(f"{prefix}{name.upper()} is not a setting: {advice}")
    return problems


def _list_problems(plain: Mapping[str, Any], fields: Mapping[str, Any], prefix: str) -> list[str]:
    """Explain each field that lacks a value or has a wrong one; converting stops at the first."""
    problems = []
    for name, field in fields.items():
        if name not in plain:
            if field.required:
                problems.append(f"{prefix}{name.upper()} must be set.")
            continue
        try:
            msgspec.convert(plain[name], field.type, strict=False)
        except msgspec.ValidationError as failure:
            problems.append(f"{prefix}{name.upper()}: {str(failure).partition(' - at `$')[0]}.")
    return problems


def _is_service_link(name: str, value: str) -> bool:
    """Tell what a cluster says of a Service that is named as ours is from a setting."""
    return any(
        link.fullmatch(name) and pattern.fullmatch(value) for link, pattern in _SERVICE_LINKS
    )


def _split_value(value: str, kind: Any, environ: Mapping[str, str]) -> Any:
    """Split a variable whose field is a tuple or list, or look up the variables that it names."""
    info = msgspec.inspect.type_info(kind)
    if isinstance(info, msgspec.inspect.DictType):
        names = [part.strip() for part in value.split(",")]
        return {name: environ[name] for name in names if name in environ}
    if isinstance(info, msgspec.inspect.VarTupleType | msgspec.inspect.ListType):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value
