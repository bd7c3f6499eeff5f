"""Finds short-lived keys of a store: remembered ones, new ones, or none where that is accepted."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from noetl_chassis.clock import Clock
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.spark.grants.temporary_keys import (
    KeysUnavailable,
    NoTemporaryKeys,
    TemporaryKeys,
)

SETTING = "NOETL_WORKER_SPARK_KEYS"
# A store that gives no keys is asked again after so long.
_NONE_S = 600.0
_REMEMBERED_MAX = 256
# Keys are given to jobs for the first quarter of their life.
_FRESH = 0.75

AskForKeys = Callable[..., TemporaryKeys]

log = structlog.get_logger(__name__)


class KeyFinder:
    """Asks stores for keys; where `is_scoped` none but such keys may be had."""

    def __init__(
        self, ask_for_keys: AskForKeys, *, clock: Clock, lifetime_s: int, is_scoped: bool
    ) -> None:
        self._ask_for_keys = ask_for_keys
        self._clock = clock
        self._lifetime_s = lifetime_s
        self._is_scoped = is_scoped
        self._keys: dict[tuple[str, str], TemporaryKeys] = {}
        # Why stores give no keys, by who asked, and until when they are not asked again.
        self._none: dict[str, tuple[float, str]] = {}

    async def find_keys(
        self, account: Mapping[str, Any], policy: str, place: str
    ) -> TemporaryKeys | None:
        """Return keys that a policy narrows, None where the account's own are accepted.

        `place` names whose keys they are in errors. Raises `ToolFailure`.
        """
        now = self._clock.now().timestamp()
        who = f"{account.get('endpoint')} {account.get('access_key')}"
        keys = self._keys.get((who, policy))
        if keys is not None and keys.ends_at - now > self._lifetime_s * _FRESH:
            return keys
        asked_again_at, reason = self._none.get(who, (0.0, ""))
        if now >= asked_again_at:
            try:
                keys = await self._request_keys(account, policy, place)
            except NoTemporaryKeys as problem:
                reason = str(problem)
                _remember(self._none, who, (now + _NONE_S, reason))
            else:
                _remember(self._keys, (who, policy), keys)
                return keys
        self.accept_own_keys(place, reason)
        return None

    async def _request_keys(
        self, account: Mapping[str, Any], policy: str, place: str
    ) -> TemporaryKeys:
        try:
            return await asyncio.to_thread(
                self._ask_for_keys, account, policy, lifetime_s=self._lifetime_s
            )
        except KeysUnavailable as problem:
            text = f"{place}: {problem}"
            raise ToolFailure(build_error("storage_access", text, source="spark")) from problem

    def accept_own_keys(self, place: str, reason: str) -> None:
        """Let executors have the keys themselves; raises `ToolFailure` where they may not."""
        if not self._is_scoped:
            log.info("executors get keys that are not scoped", place=place, reason=reason)
            return
        text = (
            f"{place} has no temporary keys for executors ({reason}), and {SETTING}=scoped lets "
            f"them have no others: use a store that gives them, or set {SETTING}=auto"
        )
        raise ToolFailure(build_error("config", text, source="spark"))


def _remember(remembered: dict[Any, Any], key: Any, value: Any) -> None:
    if len(remembered) >= _REMEMBERED_MAX:
        remembered.clear()
    remembered[key] = value
