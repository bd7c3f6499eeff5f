"""Opens a NATS server with a credential."""

from typing import Any

import nats.errors
import nats.js.errors
from nats.aio.client import Client

from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.keys.credential_vault import Credential
from noetl_worker.tools.nats_connection import open_connection

_FLUSH_S = 5


async def run_probe(credential: Credential) -> dict[str, Any]:
    """Connect, wait for one round trip, and ask JetStream for the account; raises `ToolFailure`."""
    connected = await open_connection(credential)
    client = connected.client
    try:
        await client.flush(timeout=_FLUSH_S)
        version = client.connected_server_version
        return {
            "server": f"NATS {version.major}.{version.minor}.{version.patch}",
            "user": credential.text("user"),
            **await _ask_jetstream(client),
        }
    except (nats.errors.Error, OSError) as problem:
        reason = connected.complaint or str(problem) or type(problem).__name__
        text = f"the NATS server did not answer after it had accepted the connection: {reason}"
        raise ToolFailure(failure("connection", text, source="nats")) from problem
    finally:
        await client.close()


async def _ask_jetstream(client: Client) -> dict[str, Any]:
    """Ask for the account's streams; a server without JetStream may be meant."""
    try:
        account = await client.jetstream().account_info()
    except (nats.js.errors.Error, nats.errors.Error) as problem:
        reason = str(problem) or type(problem).__name__
        note = f"the connection is good; JetStream did not answer this user: {reason}"
        return {"jetstream": False, "note": note}
    return {"jetstream": True, "streams": account.streams}
