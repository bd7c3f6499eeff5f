"""Files of HTTP servers as sources of rows: read whole, under the rules of `kind: http`."""

from typing import Any

from noetl_worker.domain.failures import ToolFailure, build_error, classify_http_status
from noetl_worker.keychain.credential_vault import CredentialVault
from noetl_worker.tools.calls.call import Call
from noetl_worker.tools.http.http_tool import HttpTool

_OK, _ERROR = 200, 400


class HttpFiles:
    """Reads files: each hop of a redirect is checked, and the size is that of an answer."""

    def __init__(self, http: HttpTool, vault: CredentialVault) -> None:
        self._http = http
        self._vault = vault

    async def fetch_file(self, url: str, auth: Any, call: Call) -> bytes:
        """Return the whole body; raises `ToolFailure`."""
        credential = None if auth is None else await self._vault.resolve_auth(auth, call.site)
        if credential is not None and credential.kind == "oauth2":
            credential = await self._http.tokens.get_bearer(credential, call.site)
        answer = await self._http.fetch_response(
            {"url": url, "method": "GET"},
            credential=credential,
            site=call.site,
            timeout_s=call.timeout.total,
        )
        shown_url = answer.url.partition("?")[0]
        if answer.status >= _ERROR:
            text = f"{shown_url} answered {answer.status}"
            raise ToolFailure(classify_http_status(answer.status, text, retry_after=None))
        if answer.status != _OK:
            text = f"{shown_url} answered {answer.status}, which is no whole file"
            raise ToolFailure(build_error("parse", text, source=call.kind))
        return answer.body
