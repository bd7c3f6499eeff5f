"""The `credential_test` tool: opens a credential and says what it found."""

from typing import Any

from noetl_chassis.clock import Clock
from noetl_contracts.credentials import TYPES
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.keychain.credential_vault import Credential, CredentialVault
from noetl_worker.tools.calls.call import Call, Outcome
from noetl_worker.tools.credential_test import (
    aws_probe,
    http_probe,
    server_probe,
)
from noetl_worker.tools.http.http_tool import HttpTool

_MS = 1000


class CredentialTool:
    """Tests credentials, each at the server that it is for."""

    def __init__(self, *, vault: CredentialVault, http: HttpTool, clock: Clock) -> None:
        self._vault = vault
        self._http = http
        self._clock = clock

    async def run(self, call: Call) -> Outcome:
        """Test one credential as it is stored now."""
        try:
            if isinstance(call.auth, str):
                # Who has just stored another version wants that one tested.
                self._vault.forget_credential(call.auth, call.site)
            credential = await self._vault.resolve_auth(call.auth, call.site)
            started_s = self._clock.monotonic_s()
            probe_fields = await self._probe_credential(credential, call)
        except ToolFailure as problem:
            return Outcome(error=problem.error)
        latency_ms = round((self._clock.monotonic_s() - started_s) * _MS, 1)
        return Outcome(
            data={
                "credential": credential.name,
                "type": credential.kind,
                "version": credential.version,
                "latency_ms": latency_ms,
                **{name: value for name, value in probe_fields.items() if value is not None},
            }
        )

    async def _probe_credential(self, credential: Credential, call: Call) -> dict[str, Any]:
        url = _find_test_url(credential, call)
        fetch, tokens = self._http.fetch_response, self._http.tokens
        match credential.kind:
            case "postgres":
                return await server_probe.probe_postgres(credential)
            case "nats":
                return await server_probe.probe_nats(credential)
            case "bearer" | "httpBearerAuth" | "basic" | "api_key":
                return await http_probe.probe_request(credential, url, fetch=fetch, site=call.site)
            case "oauth2":
                return await http_probe.probe_token(
                    credential, url, tokens=tokens, fetch=fetch, site=call.site
                )
            case "vault":
                return await http_probe.probe_vault(credential, tokens=tokens, site=call.site)
            case "s3" | "minio" | "gcs_hmac":
                return await aws_probe.probe_buckets(credential, url)
            case "aws":
                return await aws_probe.probe_identity(credential)
            case kind:
                credential_type = TYPES.get(kind)
                reason = (
                    credential_type.untestable
                    if credential_type is not None
                    else "its type is not known"
                )
                raise credential.build_unusable_failure(
                    f"of type '{kind}' cannot be tested: {reason}"
                )


def _find_test_url(credential: Credential, call: Call) -> str | None:
    """Take the address of the task, else that of the credential."""
    url = call.fields.get("url") or credential.fields.get("test_url")
    if url is not None and not isinstance(url, str):
        raise ToolFailure(build_error("validation", "field 'url' is not a text"))
    return url or None
