"""`noetl context`: keeps, chooses, lists and removes named servers."""

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from msgspec import structs

from noetl_cli import settings, terminal_output
from noetl_cli.commands.options import AsJson
from noetl_cli.errors import CliError, ExitCode
from noetl_cli.identity import contexts, provider_client, server_origin, token_store
from noetl_cli.identity.contexts import Context, Contexts, SignInMethod
from noetl_cli.identity.token_store import SignInRecord
from noetl_contracts import codec

app = typer.Typer(no_args_is_help=True, help="Keep, choose, list and remove named servers.")

KEY_CHARACTERS_MAX = 4096
_WAY_ON_BY_METHOD = {
    SignInMethod.OIDC: "noetl login",
    SignInMethod.KEY: "noetl whoami",
    SignInMethod.NONE: "noetl ls",
}
Name = Annotated[str, typer.Argument(metavar="NAME", help="The context.")]


@app.command("add")
def add_context(
    name: Name,
    *,
    server: Annotated[str, typer.Option("--server", help="Its address: https://host:port.")],
    tenant: Annotated[str, typer.Option("--tenant", help="Whose things are meant there.")] = "",
    organization: Annotated[
        str, typer.Option("--organization", help="Whose things are meant there.")
    ] = "",
    sign_in: Annotated[
        SignInMethod, typer.Option("--sign-in", help="How to sign in there.")
    ] = SignInMethod.OIDC,
    key_from: Annotated[
        Path | None,
        typer.Option("--key-from", help="A file with the API key; - is stdin."),
    ] = None,
    in_use: Annotated[bool, typer.Option("--use", help="Use it from now on.")] = False,
) -> None:
    """Keep a server under a name; one of the same name is replaced."""
    environ = settings.copy_environment()
    origin = server_origin.parse_origin(server)
    if name == contexts.LOCAL:
        raise _usage_error(
            f"{contexts.LOCAL!r} is the stack on this machine.", "Choose another name."
        )
    if (sign_in is SignInMethod.KEY) != (key_from is not None):
        raise _usage_error(
            "--sign-in key and --key-from go together.",
            "Say --sign-in key --key-from FILE, or neither.",
        )
    context = _build_context(
        {
            "name": name,
            "server": server.rstrip("/"),
            "tenant": tenant,
            "organization": organization,
            "sign_in": sign_in,
        }
    )
    if key_from is not None:
        _keep_key(key_from, server, origin, environ)
    known_contexts = contexts.read_contexts(environ)
    others = [item for item in known_contexts.contexts if item.name != name]
    if len(others) >= contexts.CONTEXTS_MAX:
        raise _usage_error(
            f"There are {contexts.CONTEXTS_MAX} contexts.", "Remove one: noetl context rm NAME"
        )
    current = name if in_use else known_contexts.current
    contexts.write_contexts(Contexts(current=current, contexts=[*others, context]), environ)
    way_on = _WAY_ON_BY_METHOD[sign_in] if in_use else f"noetl context use {name}"
    terminal_output.print_line(f"{name} is {context.server}. Next: {way_on}")


@app.command("use")
def use_context(name: Name) -> None:
    """Use a server from now on; `local` is the stack on this machine."""
    environ = settings.copy_environment()
    known_contexts = contexts.read_contexts(environ)
    if name == contexts.LOCAL:
        chosen, where = "", "the stack on this machine"
    else:
        context = contexts.get_context(known_contexts, name)
        chosen, where = name, context.server
    contexts.write_contexts(structs.replace(known_contexts, current=chosen), environ)
    terminal_output.print_line(f"In use: {name}, {where}.")


@app.command("ls")
def list_contexts(*, as_json: AsJson = False) -> None:
    """List the servers; the one in use has a star."""
    known_contexts = contexts.read_contexts(settings.copy_environment())
    if as_json:
        terminal_output.print_json(known_contexts)
        return
    rows = [
        (
            "*" if context.name == known_contexts.current else "",
            context.name,
            context.server,
            context.tenant,
            context.organization,
            str(context.sign_in),
        )
        for context in known_contexts.contexts
    ]
    mark = "" if known_contexts.current else "*"
    rows.append((mark, contexts.LOCAL, "the stack on this machine", "", "", ""))
    head = ("", "NAME", "SERVER", "TENANT", "ORGANIZATION", "SIGN-IN")
    terminal_output.print_rows(head, rows, nothing="No contexts.")


@app.command("rm")
def remove_context(name: Name) -> None:
    """Remove a server's name; its sign-in stays until `noetl logout`."""
    environ = settings.copy_environment()
    known_contexts = contexts.read_contexts(environ)
    removed = contexts.get_context(known_contexts, name)
    other_contexts = [context for context in known_contexts.contexts if context.name != name]
    current = "" if known_contexts.current == name else known_contexts.current
    contexts.write_contexts(Contexts(current=current, contexts=other_contexts), environ)
    terminal_output.print_line(f"{name} is removed; it was {removed.server}.")


def _build_context(values: dict[str, object]) -> Context:
    try:
        return codec.convert_value(values, Context)
    except msgspec.ValidationError as error:
        raise _usage_error(
            f"{values['name']!r:.70} cannot name a context.",
            "Use 1 to 63 letters, digits, '.', '_' or '-', a letter or digit first.",
        ) from error


def _keep_key(file: Path, server: str, origin: str, environ: dict[str, str]) -> None:
    provider_client.check_private_way(server)
    try:
        text = sys.stdin.read() if file == Path("-") else file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise _usage_error(
            f"{file} cannot be read: {error}.", "Name a file with the key."
        ) from error
    key = text.strip()
    if not key or len(key) > KEY_CHARACTERS_MAX or not key.isascii() or " " in key:
        raise _usage_error(f"{file} does not hold an API key.", "Make one: noetl key create")
    store = token_store.open_token_store(environ)
    with store.hold_lock():
        store.put_record(origin, SignInRecord(api_key=key))


def _usage_error(text: str, way_out: str) -> CliError:
    return CliError(text, way_out=way_out, exit_code=ExitCode.USAGE)
