"""An OpenLineage receiver, to which the projector delivers: each run event is one POST."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus

import aiohttp

from noetl_messaging.streams.errors import MessagingUnavailable
from noetl_messaging.streams.ports import LineageRefused

# Where the receivers of the standard listen, below their address.
PATH = "/api/v1/lineage"
ANSWER_S = 10.0
_SHOWN_BYTES = 300
# These say that the event itself is not wanted; anything else may change without it.
_FINAL = frozenset(
    {
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        HTTPStatus.UNPROCESSABLE_ENTITY,
    }
)


class HttpLineageEndpoint:
    """Sends to one address and follows no redirection."""

    def __init__(self, session: aiohttp.ClientSession, address: str) -> None:
        self._session = session
        self._address = address

    async def deliver_event(self, body: str) -> None:
        """Hand over the JSON of one event, perhaps again."""
        try:
            async with self._session.post(
                self._address, data=body.encode(), allow_redirects=False
            ) as answer:
                if answer.status < HTTPStatus.MULTIPLE_CHOICES:
                    return
                message = (await answer.content.read(_SHOWN_BYTES)).decode(errors="replace")
                status = answer.status
        except (aiohttp.ClientError, TimeoutError, OSError) as failure:
            raise MessagingUnavailable(
                f"the receiver of lineage does not answer: {type(failure).__name__}"
            ) from failure
        reason = f"the receiver of lineage answered {status}: {message}"
        raise LineageRefused(reason) if status in _FINAL else MessagingUnavailable(reason)


@asynccontextmanager
async def open_lineage_endpoint(url: str, *, api_key: str) -> AsyncIterator[HttpLineageEndpoint]:
    """Open a receiver at its address, with a key for it if it wants one.

    Nothing is sent before the first event, so that an empty address does no harm.
    """
    headers = {"Content-Type": "application/json"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    timeout = aiohttp.ClientTimeout(total=ANSWER_S)
    # The environment's proxies are for the world, not for a receiver that the operator names.
    async with aiohttp.ClientSession(timeout=timeout, headers=headers, trust_env=False) as session:
        yield HttpLineageEndpoint(session, f"{url.rstrip('/')}{PATH}")
