"""Named servers: which one is meant, for whom, and how to sign in there."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from noetl_cli import settings
from noetl_cli.errors import CliError, ExitCode
from noetl_cli.identity import server_origin
from noetl_cli.stack.home_folder.home import write_privately

FILE = "contexts.yaml"
# The stack on this machine, which needs no context.
LOCAL = "local"
CONTEXTS_MAX = 1000


class SignInMethod(StrEnum):
    """How to sign in at a server."""

    OIDC = "oidc"
    KEY = "key"
    NONE = "none"


ContextName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


class Context(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A server, whose things are meant there, and how to sign in."""

    name: ContextName
    server: str
    tenant: str = ""
    organization: str = ""
    sign_in: SignInMethod = SignInMethod.OIDC


class Contexts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All contexts, and the name of the one in use; empty: the stack on this machine."""

    current: str = ""
    contexts: list[Context] = []

    def find_context(self, name: str) -> Context | None:
        """Return a context by its name, or None."""
        return next((context for context in self.contexts if context.name == name), None)


def read_contexts(environ: dict[str, str]) -> Contexts:
    """Read the file of contexts; raises `CliError` for one that is none."""
    path = _get_path(environ)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise CliError(f"{path} cannot be read: {error.strerror or error}.") from error
    try:
        return msgspec.yaml.decode(data, type=Contexts)
    except msgspec.MsgspecError as error:
        raise CliError(
            f"{path} does not list contexts: {error}.",
            way_out="Correct it, or remove it and begin with: noetl context add",
        ) from error


def write_contexts(contexts: Contexts, environ: dict[str, str]) -> None:
    """Replace the file of contexts in one step; raises `StackError`."""
    path = _get_path(environ)
    make_private_folder(path.parent)
    write_privately(path, msgspec.yaml.encode(contexts))


def find_current_context(environ: dict[str, str]) -> Context | None:
    """Return the context in use; raises `CliError` for one that is not there."""
    contexts = read_contexts(environ)
    if not contexts.current:
        return None
    return get_context(contexts, contexts.current)


def get_context(contexts: Contexts, name: str) -> Context:
    """Return a context by its name; raises `CliError`."""
    context = contexts.find_context(name)
    if context is None:
        known_names = ", ".join(sorted(item.name for item in contexts.contexts)) or "none"
        raise CliError(
            f"There is no context {name!r:.70}.",
            way_out=f"Known are: {known_names}. "
            f"Add one with: noetl context add {name[:63]} --server URL",
            exit_code=ExitCode.USAGE,
        )
    return context


def find_server_context(environ: dict[str, str], server: str) -> Context | None:
    """Return the context of a server, the one in use before others; None where there is none."""
    contexts = read_contexts(environ)
    origin = server_origin.parse_origin(server)
    fitting = [
        context
        for context in contexts.contexts
        if server_origin.parse_origin(context.server) == origin
    ]
    in_use = [context for context in fitting if context.name == contexts.current]
    return next(iter(in_use or fitting), None)


def make_private_folder(folder: Path) -> None:
    """Make a folder for this user alone; raises `CliError`."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise CliError(
            f"The folder {folder} cannot be made: {error.strerror or error}.",
            way_out="Name a writable one with NOETL_CONFIG.",
        ) from error


def _get_path(environ: dict[str, str]) -> Path:
    return settings.choose_config_folder(environ=environ) / FILE
