"""What a wave leaves in the payload store: bundles of manifests, read once, and removed."""

import asyncio
from typing import Any

import pytest
from tests.support.polling import eventually
from tests.support.working import ORGANIZATION, TENANT
from tests.unit.worker.test_waves import frame, open_waves

from noetl_contracts import codec
from noetl_contracts.ids import WorkerId
from noetl_contracts.requests.facts import CommandLost, FrameClosed
from noetl_storage.payloads.memory import MemoryPayloads
from noetl_worker.domain import waves
from noetl_worker.domain.waves import WavePartition
from noetl_worker.payloads.tenant_payloads import PayloadCache, PayloadOwner, TenantPayloads
from noetl_worker.spark import wave_manifests
from noetl_worker.spark.session_options import SparkLost
from noetl_worker.spark.wave_manifests import ManifestBundler, WaveManifests

pytestmark = pytest.mark.unit

WAVE = "waves/7/abc"
PLACE = PayloadOwner(tenant_id=TENANT, organization_id=ORGANIZATION)


def stored() -> TenantPayloads:
    return TenantPayloads(MemoryPayloads(), place=PLACE, cache=PayloadCache(bytes_max=0))


def share(part: int) -> WavePartition:
    return WavePartition(
        name=WAVE,
        part=part,
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
        worker_id=WorkerId("w"),
        frames=[],
    )


async def bundled(payloads: TenantPayloads, part: int, *told: bytes) -> None:
    bundler = ManifestBundler(share(part), payloads)
    async with asyncio.TaskGroup() as group:
        group.create_task(bundler.write_bundles())
        for item in told:
            bundler.add_manifest(item)
        bundler.close()


async def test_manifests_of_one_moment_are_one_object() -> None:
    payloads = stored()
    await bundled(payloads, 0, b'{"a":1}', b'{"b":2}')
    assert await payloads.list_names("waves/") == [waves.build_bundle_name(WAVE, 0, 0)]
    assert await WaveManifests(WAVE, payloads).read_manifests() == [b'{"a":1}', b'{"b":2}']


async def test_a_partition_without_an_end_writes_nothing() -> None:
    payloads = stored()
    await bundled(payloads, 0)
    assert await payloads.list_names("waves/") == []


async def test_what_ended_is_there_while_the_partition_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wave_manifests, "BUNDLE_S", 0.001)
    payloads = stored()
    bundler, manifests = ManifestBundler(share(0), payloads), WaveManifests(WAVE, payloads)
    found: list[bytes] = []

    async def are_read() -> bool:
        found.extend(await manifests.read_manifests())
        return len(found) == told

    async with asyncio.TaskGroup() as group:
        group.create_task(bundler.write_bundles())
        for told in (1, 2):
            bundler.add_manifest(b"%d" % told)
            await eventually(are_read)
        bundler.close()
    assert found == [b"1", b"2"]


async def test_a_second_task_of_a_partition_sees_what_the_first_one_said() -> None:
    payloads = stored()
    for part in (1, 11):
        await bundled(payloads, part, codec.encode_json(part))
    assert await WaveManifests(WAVE, payloads).read_manifests(1) == [b"1"]


async def test_a_bundle_that_cannot_be_read_hides_no_other() -> None:
    payloads = stored()
    await payloads.put_named(waves.build_bundle_name(WAVE, 0, 0), b"[{")
    await bundled(payloads, 1, b"1")
    assert await WaveManifests(WAVE, payloads).read_manifests() == [b"1"]


async def names(payloads: MemoryPayloads) -> list[str]:
    return await payloads.list_names("waves/", tenant_id=TENANT, organization_id=ORGANIZATION)


async def test_a_wave_that_has_ended_leaves_nothing() -> None:
    async with open_waves() as (waves_, jobs):
        facts = await asyncio.gather(*[waves_.run_command_frame(frame(unit)) for unit in range(4)])

        async def is_cleared() -> bool:
            return await names(jobs.payloads) == []

        await eventually(is_cleared)
    assert all(isinstance(fact, FrameClosed) for fact in facts)


@pytest.mark.parametrize("is_given_up", [False, True])
async def test_no_partition_of_a_wave_that_broke_off_begins_late(
    is_given_up: bool,  # noqa: FBT001 - a case of the table
) -> None:
    async with open_waves(poll_s=60) as (waves_, jobs):
        jobs.ended_before = lambda placed: placed.place == 0
        running = [
            asyncio.ensure_future(waves_.run_command_frame(frame(unit))) for unit in range(4)
        ]
        if is_given_up:
            jobs.gate.clear()
            await eventually(jobs.has_begun)
            for item in running:
                item.cancel()
        else:
            jobs.problem = SparkLost("gone")
        facts: list[Any] = await asyncio.gather(*running, return_exceptions=True)

        async def is_sealed() -> bool:
            (name,) = {share.name for share in jobs.waves[0]}
            claim_names = [waves.build_claim_name(name, part) for part in range(2)]
            return await names(jobs.payloads) == claim_names

        await eventually(is_sealed)
    assert [isinstance(fact, CommandLost) for fact in facts[1:]] == [not is_given_up] * 3
