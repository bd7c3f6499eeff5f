"""`noetl retention` against a planner's API."""

from typing import Any

from tests.support.running_api import Noetl
from tests.support.storage import ORGANIZATION, TENANT

from noetl_contracts import codec


def asked(noetl: Noetl, *words: str) -> Any:
    return noetl("retention", *words, "--tenant", TENANT, "--organization", ORGANIZATION)


def test_everything_is_held_listed_and_released(noetl: Noetl) -> None:
    held = asked(noetl, "hold", "--all", "--reason", "court order", "--who", "ann")
    assert (held.code, "Everything is held" in held.out) == (0, True), held.err
    shown = asked(noetl, "list")
    assert ("court order" in shown.out, "Nothing has left" in shown.err) == (True, True)
    released = asked(noetl, "release", "--all", "--reason", "over", "--json")
    assert codec.decode_json(released.out)["execution_id"] is None
    assert "No holds" in asked(noetl, "list").err
    [kept] = codec.decode_json(asked(noetl, "list", "--released", "--json").out)["holds"]
    assert (kept["reason"], kept["release_reason"]) == ("court order", "over")
    assert asked(noetl, "release", "--all", "--reason", "over").code == 2


def test_a_policy_is_shown_and_set(noetl: Noetl) -> None:
    assert "No policy of its own" in asked(noetl, "policy").out
    words = ("policy", "--keep-days", "30", "--action", "archive", "--who", "ann")
    assert "30 days after its end: archive (set by ann)" in asked(noetl, *words).out
    assert codec.decode_json(asked(noetl, "policy", "--json").out)["keep_days"] == 30


def test_half_of_a_wish_is_refused(noetl: Noetl) -> None:
    half = asked(noetl, "policy", "--keep-days", "30")
    assert (half.code, "together" in half.err) == (2, True)
    nothing = asked(noetl, "hold", "--reason", "why")
    assert (nothing.code, "Name an execution" in nothing.err) == (2, True)
    unknown = asked(noetl, "hold", "12", "--reason", "why")
    assert (unknown.code, "no history" in unknown.err) == (2, True)
