"""A bucket that is opened with the first call, and not at all where nobody calls."""

from collections.abc import Callable
from functools import cached_property
from typing import Any, cast

from noetl_storage.payloads.objects import Objects


def defer_bucket(open_bucket: Callable[[], Objects]) -> Objects:
    """Return what does as the bucket does; the first call opens it, in the caller's thread.

    That call raises what opening raises.
    """
    return cast("Objects", _DeferredBucket(open_bucket))


class _DeferredBucket:
    """Stands for a bucket until something of it is called."""

    def __init__(self, open_bucket: Callable[[], Objects]) -> None:
        self._open_bucket = open_bucket

    @cached_property
    def _bucket(self) -> Objects:
        return self._open_bucket()

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call_bucket(*arguments: Any, **options: Any) -> Any:
            return getattr(self._bucket, method)(*arguments, **options)

        return call_bucket
