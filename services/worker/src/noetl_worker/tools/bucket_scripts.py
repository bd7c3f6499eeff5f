"""Scripts in buckets: read once for an execution, so that all its tasks run one text."""

from typing import Any

from noetl_contracts import codec
from noetl_contracts.errors import Permanent, Retryable
from noetl_contracts.log_chunks import NOTICE
from noetl_contracts.scripts import pin_name
from noetl_storage.ports import Buckets
from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.keys.credential_vault import Vault
from noetl_worker.tools import bucket_places
from noetl_worker.tools.call import Call
from noetl_worker.tools.references import References


class BucketScripts:
    """Reads scripts from S3 and what speaks like it."""

    def __init__(self, buckets: Buckets, vault: Vault, references_: References) -> None:
        self._buckets = buckets
        self._vault = vault
        self._references = references_

    async def read(self, uri: Any, auth: Any, call: Call, *, bytes_max: int) -> bytes:
        """Return the text that the execution has read first; raises `ToolFailure`."""
        store = self._references.payloads(call.site)
        name = pin_name(call.site.execution_id, uri=str(uri), auth=str(auth))
        data = await store.find_named(name)
        if data is None:
            read = await self._read_object(uri, auth, call, bytes_max=bytes_max)
            # Of two workers that read at the same moment, one is first.
            standing = await store.put_named(name, read)
            data = read if standing is None else standing
        digest, size = codec.digest(data), len(data)
        call.log.add_line(NOTICE, f"script {uri} {digest} {size} bytes")
        return data

    async def _read_object(self, uri: Any, auth: Any, call: Call, *, bytes_max: int) -> bytes:
        place = await bucket_places.find_place(
            str(uri),
            auth,
            site=call.site,
            vault=self._vault,
            source="script",
            field="script.source.auth",
        )
        try:
            return await self._buckets.read(
                place.account, place.bucket, place.key, bytes_max=bytes_max
            )
        except KeyError as problem:
            text = f"there is no script at {uri!r:.200}"
            raise ToolFailure(failure("not_found", text, source="script")) from problem
        except ValueError as problem:
            text = f"script {uri!r:.200} has more than {bytes_max} bytes"
            raise ToolFailure(failure("limit", text, code="SCRIPT_BYTES")) from problem
        except Permanent as problem:
            text = f"script {uri!r:.200} cannot be read: {problem}"
            raise ToolFailure(failure("config", text, source="script")) from problem
        except Retryable as problem:
            text = f"script {uri!r:.200} cannot be read now: {problem}"
            raise ToolFailure(failure("storage_access", text, source="script")) from problem
