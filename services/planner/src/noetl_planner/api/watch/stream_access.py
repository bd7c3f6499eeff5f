"""Access of what goes on, a stream or a wait: asked again, since keys, roles and sessions end."""

from time import monotonic
from typing import cast

import structlog
from litestar.types import HTTPScope

from noetl_contracts.errors import Retryable
from noetl_contracts.ids import ExecutionId
from noetl_planner.api.http.gate import REMEMBERED_S, Gate
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.services import GATE, ApiServices
from noetl_planner.api.lookup import execution_lookup
from noetl_planner.identity.openid.refusals import TokenRefused

log = structlog.get_logger(__name__)


class StreamAccess:
    """Asks the gate now and then whether a client has the access that its request began with."""

    def __init__(self, scope: HTTPScope, services: ApiServices, execution_id: ExecutionId) -> None:
        self._scope = scope
        self._services = services
        self._execution_id = execution_id
        self._admitted_s = monotonic()

    async def is_open(self) -> bool:
        """Tell whether the stream may go on; asks once in so long as the gate remembers."""
        if monotonic() - self._admitted_s < REMEMBERED_S:
            return True
        self._admitted_s = monotonic()
        gate = cast("Gate", self._scope[GATE])  # type: ignore[literal-required]  # a key of ours
        try:
            services = await gate.admit_request(self._scope, is_counted=False)
            await execution_lookup.check_reach(services, self._execution_id)
        except (ApiError, TokenRefused, Retryable) as refusal:
            # Where nobody can be asked it ends as well: the client comes again.
            log.info("stream ended", execution_id=self._execution_id, reason=str(refusal))
            return False
        # With other roles it comes again, and is shown what these allow.
        return services.access == self._services.access
