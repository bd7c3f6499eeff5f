"""What the command line reads from the environment."""

import os
import sys
from pathlib import Path

from msgspec import Struct, structs

HOME_VARIABLE = "NOETL_HOME"
# For the ways out of those who look for a stack in the wrong folder.
OTHER_HOME = f"A stack in another folder is found with {HOME_VARIABLE}=FOLDER"
OTHER_HOME_OR_DIR = f"{OTHER_HOME} or --dir FOLDER"
AUDIT_PREFIX = "NOETL_AUDIT_"
# Set by the scripts of `noetl completion` when a shell asks for words.
COMPLETION_VARIABLE = "_NOETL_COMPLETE"


class AuditAccess(Struct, frozen=True, kw_only=True):
    """Where ledger and archive are, and what opens them; either address may be empty."""

    dsn: str = ""
    payload_url: str = ""
    payload_access_key: str = ""
    payload_secret_key: str = ""
    payload_seal_key: str = ""


def copy_environment() -> dict[str, str]:
    """Copy the process environment, once, for those who hand it on."""
    return dict(os.environ)


def choose_home(directory: Path | None, *, environ: dict[str, str]) -> Path:
    """Choose the stack's folder: the argument, `NOETL_HOME`, or the user's state folder."""
    if directory is not None:
        return directory.expanduser().absolute()
    named = environ.get(HOME_VARIABLE)
    if named:
        return Path(named).expanduser().absolute()
    state = environ.get("XDG_STATE_HOME")
    base = Path(state) if state else Path(environ.get("HOME", "/")) / ".local" / "state"
    return base / "noetl"


def choose_config_folder(*, environ: dict[str, str]) -> Path:
    """Choose the folder of contexts and sign-ins: `NOETL_CONFIG`, or the user's own."""
    named = environ.get("NOETL_CONFIG")
    if named:
        return Path(named).expanduser().absolute()
    config = environ.get("XDG_CONFIG_HOME")
    base = Path(config) if config else Path(environ.get("HOME", "/")) / ".config"
    return base / "noetl"


def find_api_key(*, environ: dict[str, str]) -> str | None:
    """Return the API key that the environment names."""
    return environ.get("NOETL_API_KEY") or None


def can_open_browser(*, environ: dict[str, str]) -> bool:
    """Tell whether this machine has a screen for a browser."""
    has_screen = bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))
    return (has_screen or sys.platform == "darwin") and "SSH_CONNECTION" not in environ


def is_found_without_name(home: Path, *, environ: dict[str, str]) -> bool:
    """Tell whether a stack's folder is the one of a shell that names none."""
    unnamed = {name: value for name, value in environ.items() if name != HOME_VARIABLE}
    return choose_home(None, environ=unnamed) == home


def find_api_url(*, environ: dict[str, str]) -> str | None:
    """Name the planner to talk to, when the environment names one."""
    return environ.get("NOETL_SERVER")


def find_authorities(*, environ: dict[str, str]) -> str | None:
    """Name the file of authorities that servers are checked by; None: those of the system."""
    return environ.get("NOETL_CA_FILE") or None


def is_plain(*, environ: dict[str, str]) -> bool:
    """Tell whether the user wants no colour."""
    return bool(environ.get("NO_COLOR")) or environ.get("TERM") == "dumb"


def is_completing(*, environ: dict[str, str]) -> bool:
    """Tell whether a shell asks for words."""
    return COMPLETION_VARIABLE in environ


def find_owner(
    tenant: str | None, organization: str | None, *, environ: dict[str, str]
) -> dict[str, str]:
    """Say whose things are meant, as far as arguments or the environment say it."""
    named = {
        "tenant_id": tenant or environ.get("NOETL_TENANT"),
        "organization_id": organization or environ.get("NOETL_ORGANIZATION"),
    }
    return {field: name for field, name in named.items() if name}


def choose_owner(
    tenant: str | None, organization: str | None, *, environ: dict[str, str]
) -> dict[str, str]:
    """Say whose things are meant: the arguments, the environment, or a single tenant's default."""
    default = {"tenant_id": "default", "organization_id": "default"}
    return default | find_owner(tenant, organization, environ=environ)


def build_audit_environ(access: AuditAccess) -> dict[str, str]:
    """Return the variables by which executors of an audit are told what they open."""
    audit_environ: dict[str, str] = structs.asdict(access)
    return {
        f"{AUDIT_PREFIX}{name.upper()}": value for name, value in audit_environ.items() if value
    }


def read_audit_access() -> AuditAccess:
    """Read from the environment what an audit on Spark needs on its executors: DSN and store."""
    names = AuditAccess.__struct_fields__
    return AuditAccess(
        **{name: os.environ.get(f"{AUDIT_PREFIX}{name.upper()}", "") for name in names}
    )
