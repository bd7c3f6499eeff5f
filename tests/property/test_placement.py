"""Places: what many share does not depend on their order, and the nearest is chosen."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl_contracts.commands import placement
from noetl_contracts.commands.placement import PLACE_KEYS, LocalityMalformed, PlacementPreference
from noetl_contracts.commands.worker_pools import (
    WorkerHeartbeat,
    choose_nearest_worker,
    decode_worker_heartbeat,
)
from noetl_contracts.ids import WorkerId
from noetl_contracts.locators import DISTANCES, find_distance

names = st.sampled_from(["a", "b"])
places = st.dictionaries(st.sampled_from(PLACE_KEYS), names, max_size=4)
beats = st.lists(
    st.builds(
        WorkerHeartbeat,
        worker_id=st.integers(0, 9).map(lambda number: WorkerId(f"w{number}")),
        pool=st.sampled_from(["p", "q"]),
        lanes=st.just(("io",)),
        running=st.integers(0, 3),
        capacity=st.integers(0, 3),
        locality=places,
        max_distance=st.sampled_from(DISTANCES),
    ),
    max_size=6,
    unique_by=lambda beat: beat.worker_id,
)


@given(places, places, places)
def test_what_places_share_does_not_depend_on_their_order(
    one: dict[str, str], two: dict[str, str], three: dict[str, str]
) -> None:
    common = placement.find_common_place
    assert common(one, two) == common(two, one)
    assert common(common(one, two), three) == common(one, common(two, three))
    assert common(one, one) == one
    assert placement.find_shared_place([]) == {}


@given(places, places)
def test_what_places_share_is_as_near_to_each_as_they_are_to_each_other(
    one: dict[str, str], two: dict[str, str]
) -> None:
    shared = placement.find_common_place(one, two)
    # A part that only one of them knows is not shared, though what is finer may be.
    if shared and one.keys() == two.keys():
        assert find_distance(shared, one) == find_distance(shared, two)
        assert placement.rank_distance(find_distance(shared, one)) <= placement.rank_distance(
            find_distance(one, two)
        )


@given(places, places, st.sampled_from(DISTANCES))
def test_a_bound_admits_what_is_near_enough_and_what_has_no_place(
    here: dict[str, str], source: dict[str, str], farthest: str
) -> None:
    preference = PlacementPreference(place=here, max_distance=farthest)
    is_near = placement.rank_distance(find_distance(source, here)) <= placement.rank_distance(
        farthest
    )
    assert preference.admits_source(source) == (is_near or not source)
    assert preference.admits_source({})
    assert PlacementPreference(place=here).admits_source(source)


@given(places, places, places)
def test_nearer_work_comes_first_and_work_of_no_place_before_what_is_far(
    here: dict[str, str], one: dict[str, str], other: dict[str, str]
) -> None:
    order = PlacementPreference(place=here).rank_source
    if one and other and order(one) < order(other):
        assert placement.rank_distance(find_distance(one, here)) < placement.rank_distance(
            find_distance(other, here)
        )
    if one:
        assert (order(one) < order({})) == (find_distance(one, here) != placement.ANYWHERE)


@given(places, beats)
def test_whom_a_command_is_offered_to_has_room_and_nobody_with_room_is_nearer(
    source: dict[str, str], seen: list[WorkerHeartbeat]
) -> None:
    by_id = {beat.worker_id: beat for beat in seen if beat.pool == "p"}
    chosen = choose_nearest_worker(source, seen, pool="p", lane="io")

    def far(beat: WorkerHeartbeat) -> int:
        return placement.rank_distance(find_distance(source, beat.locality))

    if chosen is None:
        equal = len({far(beat) for beat in by_id.values()}) < 2
        none_near = all(
            beat.free_capacity == 0
            or far(beat) == placement.rank_distance(placement.ANYWHERE)
            or not beat.admits_distance(far(beat))
            for beat in by_id.values()
        )
        assert equal or none_near
        return
    assert by_id[chosen].free_capacity > 0
    assert by_id[chosen].admits_distance(far(by_id[chosen]))
    assert far(by_id[chosen]) == min(
        far(beat)
        for beat in by_id.values()
        if beat.free_capacity and beat.admits_distance(far(beat))
    )
    assert far(by_id[chosen]) < placement.rank_distance(placement.ANYWHERE)


def test_a_claims_locality_is_read_by_any_of_its_spellings() -> None:
    said = {
        "node_id": "n1",
        "prefer_node": "n2",
        "cluster_id": "c",
        "pid": 7,
        "max_distance": "zone",
    }
    read = placement.read_preference(said)
    assert (read.place, read.max_distance) == ({"cluster": "c", "node": "n2"}, "zone")
    assert placement.read_preference({}).admits_source({"node": "elsewhere"})


@pytest.mark.parametrize(
    ("said", "names_"),
    [
        ({"node": ""}, "locality.node"),
        ({"zone": 7}, "locality.zone"),
        ({"prefer_zone": "z" * 129}, "locality.prefer_zone"),
        ({"node": "n", "max_distance": "near"}, "node, zone, region, cluster, any"),
        ({"node": "n", "max_distance": None}, "locality.max_distance"),
        ({"max_distance": "zone"}, "nothing says where the worker is"),
        ({"note": "x" * 3000}, "2048 bytes"),
    ],
)
def test_what_names_no_place_is_refused_with_its_name(said: dict[str, object], names_: str) -> None:
    with pytest.raises(LocalityMalformed, match=names_):
        placement.read_preference(said)


def test_a_beat_says_what_a_worker_could_still_take() -> None:
    beat = WorkerHeartbeat(worker_id=WorkerId("w"), pool="p", lanes=("io",), running=5, capacity=3)
    assert beat.free_capacity == 0
    with pytest.raises(Exception, match="beat"):
        decode_worker_heartbeat(b"{}")
