"""Locators: every segment comes back, nothing in a segment becomes structure."""

import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from noetl_contracts import locators
from noetl_contracts.errors import LocatorError
from noetl_contracts.ids import OrganizationId, TenantId, WorkerId
from noetl_contracts.locators import LOCALITY_KEYS, Locator

TENANT, ORGANIZATION = TenantId("acme"), OrganizationId("care-network")
HARD = ["/", "%", "%2F", "..", "a b", "*", ">", "a.b", "=2F", "ä", "\U0001f600", "?x=1", "#f", "~"]
usable = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters=[chr(i) for i in range(32)]),
    min_size=1,
    max_size=12,
).filter(lambda text: text not in {".", ".."})
segments = st.one_of(usable, st.sampled_from([item for item in HARD if item != ".."]))
localities = st.dictionaries(st.sampled_from(LOCALITY_KEYS), segments, max_size=5)


@given(st.lists(segments, min_size=1, max_size=8))
@example(["tenant", "a/../b", "org", "%2e%2e", "x", "node", "y"])
def test_what_was_built_is_parsed_and_what_was_parsed_is_built(parts: list[str]) -> None:
    text = locators.build_locator(*parts)
    locator = locators.parse_locator(text)
    assert locator.segments == tuple(parts)
    assert str(locator) == text
    allowed = set(string.ascii_letters + string.digits + "-._~%/:")
    assert set(text) <= allowed
    assert text.count("/") == len(parts) + 1


@given(st.text(max_size=60))
def test_any_text_is_parsed_canonically_or_refused(text: str) -> None:
    for candidate in (text, locators.SCHEME + text):
        try:
            locator = locators.parse_locator(candidate)
        except LocatorError:
            continue
        assert str(locator) == candidate


def locality_of(locator: Locator) -> dict[str, str]:
    segments = {key: locator.find_segment(key) for key in LOCALITY_KEYS}
    return {key: value for key, value in segments.items() if value is not None}


@given(segments, localities, st.lists(segments, min_size=1, max_size=4))
def test_a_resource_says_whose_where_and_what(
    tenant: str, locality: dict[str, str], identity: list[str]
) -> None:
    text = locators.build_resource_locator(
        TenantId(tenant), ORGANIZATION, "stream", *identity, locality=locality
    )
    locator = locators.parse_locator(text)
    assert locator.find_segment("tenant") == tenant
    assert locator.find_segment("org") == ORGANIZATION
    assert locality_of(locator) == locality
    assert locator.get_kind_and_identity() == ("stream", tuple(identity))


@given(st.lists(st.sampled_from([*LOCALITY_KEYS, "tenant", "org", "x"]), min_size=1, max_size=6))
def test_the_name_of_a_thing_is_never_read_as_its_owner_or_place(name: list[str]) -> None:
    locator = locators.parse_locator(
        locators.build_named_locator(TENANT, ORGANIZATION, "/".join(name))
    )
    assert (locator.find_segment("tenant"), locator.find_segment("org")) == (TENANT, ORGANIZATION)
    assert locality_of(locator) == {}
    assert locator.get_kind_and_identity() == ("named", tuple(name))


def test_the_examples_of_the_scheme_are_understood() -> None:
    worker = locators.build_worker_locator(
        TENANT,
        ORGANIZATION,
        {
            "node": "gke-noetl-pool-a-7b",
            "process": "1",
            "zone": "us-central1-a",
            "region": "us-central1",
            "cluster": "prod-1",
        },
        WorkerId("cpu-01"),
    )
    assert worker == (
        "noetl://tenant/acme/org/care-network/cluster/prod-1/region/us-central1/"
        "zone/us-central1-a/node/gke-noetl-pool-a-7b/process/1/worker/cpu-01"
    )
    stream = locators.parse_locator(
        "noetl://tenant/acme/org/care-network/cluster/prod-1/region/global/stream/events/7/3"
    )
    assert locality_of(stream) == {"cluster": "prod-1", "region": "global"}
    assert stream.get_kind_and_identity() == ("stream", ("events", "7", "3"))
    payload = locators.parse_locator(locators.build_payload_locator(TENANT, ORGANIZATION, "a" * 64))
    assert payload.get_kind_and_identity() == ("payloads", ("sha256", "a" * 64))
    result = locators.parse_locator(locators.build_result_locator("7", "step", "1", "task"))
    assert result.get_kind_and_identity() == ("execution", ("7", "result", "step", "1", "task"))


def test_a_locator_has_a_length_that_it_cannot_exceed() -> None:
    with pytest.raises(LocatorError, match="2048"):
        locators.build_locator("x" * 2048)
    with pytest.raises(LocatorError, match="2048"):
        locators.parse_locator(locators.SCHEME + "x" * 2048)


@pytest.mark.parametrize(
    ("kind", "identity", "locality"),
    [
        ("node", ["n"], {}),
        ("tenant", ["t"], {}),
        ("worker", [], {}),
        ("worker", ["w"], {"continent": "europe"}),
        ("worker", ["."], {}),
        ("worker", ["a\nb"], {}),
        ("worker", ["\ud800"], {}),
        ("worker", ["w"], {"node": ""}),
    ],
)
def test_what_could_be_misread_is_refused(
    kind: str, identity: list[str], locality: dict[str, str]
) -> None:
    with pytest.raises(LocatorError):
        locators.build_resource_locator(TENANT, ORGANIZATION, kind, *identity, locality=locality)


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [
        ({"node": "a"}, {"node": "a"}, "node"),
        ({"node": "a", "zone": "z"}, {"node": "b", "zone": "z"}, "zone"),
        ({"node": "a", "zone": "y"}, {"node": "a", "zone": "z"}, "any"),
        ({"node": "a", "cluster": "c"}, {"node": "a", "cluster": "d"}, "any"),
        ({"region": "r", "zone": "y"}, {"region": "r", "zone": "z"}, "region"),
        ({"cluster": "c", "region": "r"}, {"cluster": "c", "region": "s"}, "cluster"),
        ({}, {}, "any"),
        ({"node": "a"}, {}, "any"),
    ],
)
def test_the_distance_of_two_places(
    one: dict[str, str], other: dict[str, str], wanted: str
) -> None:
    assert locators.find_distance(one, other) == wanted
    assert locators.find_distance(other, one) == wanted
