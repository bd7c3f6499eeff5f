"""Old shapes advance step by step, or are refused."""

import pytest

from noetl_contracts.errors import UnknownEventType
from noetl_replay import upcast
from noetl_replay.upcast import Body


def renamed(body: Body) -> Body:
    return {"name": body["title"]}


def test_the_current_shape_is_left_alone() -> None:
    body = {"step": "fetch"}
    assert upcast.upcast("noetl.step.enter", upcast.CURRENT_VERSION, body) is body


def test_an_old_shape_is_advanced() -> None:
    registry = {("noetl.thing", 0): (1, renamed)}
    assert upcast.upcast("noetl.thing", 0, {"title": "x"}, registry) == {"name": "x"}


def test_a_newer_shape_is_refused_with_the_way_out() -> None:
    with pytest.raises(UnknownEventType, match="upgrade before reading"):
        upcast.upcast("noetl.step.enter", upcast.CURRENT_VERSION + 1, {})


def test_an_upcaster_that_does_not_advance_is_refused() -> None:
    registry = {("noetl.thing", 0): (0, renamed)}
    with pytest.raises(UnknownEventType, match="does not advance"):
        upcast.upcast("noetl.thing", 0, {"title": "x"}, registry)


def test_the_digest_says_which_transitions_exist() -> None:
    assert upcast.digest() != upcast.digest({("noetl.thing", 0): (1, renamed)})
