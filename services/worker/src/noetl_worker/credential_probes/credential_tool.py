"""The `credential_test` tool: opens a credential and says what it found."""

from typing import Any

from noetl_chassis.clock import Clock
from noetl_contracts.credential_types import TYPES
from noetl_worker.credential_probes import (
    aws_probe,
    http_probe,
    nats_probe,
    postgres_probe,
    vault_probe,
)
from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.keys.credential_vault import Credential, Vault
from noetl_worker.tools.call import Call, Outcome
from noetl_worker.tools.http import HttpTool

_MS = 1000


class CredentialTool:
    """Tests credentials, each at the server that it is for."""

    def __init__(self, *, vault: Vault, http: HttpTool, clock: Clock) -> None:
        self._vault = vault
        self._http = http
        self._clock = clock

    async def run(self, call: Call) -> Outcome:
        """Test one credential as it is stored now."""
        try:
            if isinstance(call.auth, str):
                # Who has just stored another version wants that one tested.
                self._vault.forget(call.auth, call.site)
            credential = await self._vault.resolve(call.auth, call.site)
            started = self._clock.monotonic()
            found = await self._probe(credential, call)
        except ToolFailure as problem:
            return Outcome(error=problem.error)
        latency_ms = round((self._clock.monotonic() - started) * _MS, 1)
        return Outcome(
            data={
                "credential": credential.name,
                "type": credential.kind,
                "version": credential.version,
                "latency_ms": latency_ms,
                **{name: value for name, value in found.items() if value is not None},
            }
        )

    async def _probe(self, credential: Credential, call: Call) -> dict[str, Any]:
        url = _url_of(credential, call)
        fetch, tokens = self._http.fetch, self._http.tokens
        match credential.kind:
            case "postgres":
                return await postgres_probe.run_probe(credential)
            case "nats":
                return await nats_probe.run_probe(credential)
            case "bearer" | "httpBearerAuth" | "basic" | "api_key":
                return await http_probe.request_with(credential, url, fetch=fetch, site=call.site)
            case "oauth2":
                return await http_probe.ask_for_token(
                    credential, url, tokens=tokens, fetch=fetch, site=call.site
                )
            case "vault":
                return await vault_probe.run_probe(credential, tokens=tokens, site=call.site)
            case "s3" | "minio" | "gcs_hmac":
                return await aws_probe.list_buckets(credential, url)
            case "aws":
                return await aws_probe.ask_for_identity(credential)
            case kind:
                known = TYPES.get(kind)
                why = known.untestable if known is not None else "its type is not known"
                raise credential.unusable(f"of type '{kind}' cannot be tested: {why}")


def _url_of(credential: Credential, call: Call) -> str | None:
    """Take the address of the task, else that of the credential."""
    given = call.fields.get("url") or credential.fields.get("test_url")
    if given is not None and not isinstance(given, str):
        raise ToolFailure(failure("validation", "field 'url' is not a text"))
    return given or None
