"""Asks a server that speaks as HashiCorp Vault does about a credential's token."""

from typing import Any

from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.domain.sites import Site
from noetl_worker.keys.credential_vault import Credential
from noetl_worker.keys.tokens import Tokens

# The rest of the answer holds the token itself, and its accessor.
_TOLD = ("display_name", "policies", "ttl", "renewable")


async def run_probe(credential: Credential, *, tokens: Tokens, site: Site) -> dict[str, Any]:
    """Let the token look itself up; raises `ToolFailure`."""
    address, token = credential.text("url"), credential.text("token")
    if not address or not token:
        raise credential.unusable("needs url and token")
    request = {
        "url": f"{address.rstrip('/')}/v1/auth/token/lookup-self",
        "headers": {"X-Vault-Token": token},
        "follow_redirects": False,
    }
    body = await tokens.fetched(request, credential=None, site=site, what=credential.name)
    data = body.get("data") if isinstance(body, dict) else None
    if not isinstance(data, dict):
        text = f"'{credential.name}': the server's answer about the token has no 'data'"
        raise ToolFailure(failure("schema", text, source="http"))
    return {"server": "vault", **{name: data[name] for name in _TOLD if name in data}}
