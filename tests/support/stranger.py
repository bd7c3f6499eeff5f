"""A worker in another language, as it might be: it knows HTTP and docs/reference/claim-api.md."""

from typing import Any

import httpx


class Stranger:
    """Asks one planner for work under one name."""

    def __init__(self, http: httpx.AsyncClient, name: str) -> None:
        self._http = http
        self.name = name

    async def post(self, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
        """Send a body; return the status and the answer."""
        answer = await self._http.post(path, json=body)
        return answer.status_code, answer.json()

    async def claim(self, pool: str, **more: Any) -> dict[str, Any] | None:
        """Ask for a command of a pool."""
        code, answer = await self.post(
            "/api/commands/claim", worker_id=self.name, pool=pool, **more
        )
        assert code == 200, answer
        found: dict[str, Any] | None = answer["claim"]
        return found

    async def claim_frame(self, stage_id: str, **more: Any) -> dict[str, Any]:
        """Ask for a frame of a stage; return the whole answer."""
        path = f"/api/stages/{stage_id}/frames/claim"
        code, answer = await self.post(path, worker_id=self.name, **more)
        assert code == 200, answer
        return answer

    async def end(
        self, claim: dict[str, Any], verb: str, **body: Any
    ) -> tuple[int, dict[str, Any]]:
        """Complete, fail, release or extend a command."""
        lease = dict(claim["lease"])
        return await self.post(f"/api/commands/{lease.pop('command_id')}/{verb}", **lease, **body)

    async def end_frame(
        self, claim: dict[str, Any], verb: str, **body: Any
    ) -> tuple[int, dict[str, Any]]:
        """Commit or extend a frame."""
        return await self.post(
            f"/api/frames/{claim['frame']['frame_id']}/{verb}", **claim["lease"], **body
        )
