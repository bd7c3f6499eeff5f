"""A bucket that is opened with the first call, and a store at an address nobody may have."""

from collections.abc import Callable

import pytest

from noetl_storage.payloads.deferred_objects import defer_bucket
from noetl_storage.payloads.factory import open_payloads
from noetl_storage.payloads.memory import MemoryObjects
from noetl_storage.payloads.objects import Objects
from noetl_storage.ports.errors import StorageMisconfigured


def count_openings(opened: list[Objects]) -> Callable[[], Objects]:
    def open_bucket() -> Objects:
        opened.append(MemoryObjects())
        return opened[-1]

    return open_bucket


def test_the_first_call_opens_a_bucket_and_the_others_use_it() -> None:
    opened: list[Objects] = []
    bucket = defer_bucket(count_openings(opened))
    assert opened == []
    with bucket.translate_errors("a"):
        bucket.store_object("a", b"one", "text/plain")
    assert bucket.read_object("a") == b"one"
    assert [found.key for found in bucket.iterate_objects_under("")] == ["a"]
    assert len(opened) == 1


def test_a_bucket_that_did_not_open_is_opened_again_by_the_next_call() -> None:
    refusals = [StorageMisconfigured("no such place")]

    def open_bucket() -> Objects:
        if refusals:
            raise refusals.pop()
        return MemoryObjects()

    bucket = defer_bucket(open_bucket)
    with pytest.raises(StorageMisconfigured, match="no such place"):
        bucket.read_object("a")
    with pytest.raises(KeyError):
        bucket.read_object("a")


async def test_an_endpoint_that_is_no_address_is_a_wrong_setting() -> None:
    with pytest.raises(StorageMisconfigured, match="the endpoint 'nowhere' is no address"):
        async with open_payloads("s3://things?endpoint=nowhere"):
            pass
