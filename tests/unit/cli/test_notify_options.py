"""Options and lines of `noetl notify`."""

import pytest
import typer

from noetl_cli.commands.messages.notify import (
    _describe_cause,
    _describe_quiet_hours,
    _read_quiet_hours,
)


def test_quiet_hours_are_read_and_written_back() -> None:
    quiet = _read_quiet_hours("22:00-07:00", "Europe/Berlin", ["fri", "sat"])
    assert quiet == {
        "from": "22:00",
        "to": "07:00",
        "zone": "Europe/Berlin",
        "days": ["fri", "sat"],
    }
    assert _describe_quiet_hours(quiet) == "22:00-07:00 Europe/Berlin fri sat"
    assert _read_quiet_hours(None, "UTC", []) is None
    assert _describe_quiet_hours(None) == ""


def test_quiet_hours_without_an_end_are_refused() -> None:
    with pytest.raises(typer.BadParameter, match="FROM-TO"):
        _read_quiet_hours("22:00", "UTC", [])


@pytest.mark.parametrize(
    ("cause", "seconds", "text"),
    [
        ("failed", 0.0, "failed"),
        ("late", 7200.0, "still runs after 7200 s"),
        ("late", 0.0, "passes a deadline"),
        ("waiting", 0.0, "waits for an approval"),
        ("waiting", 60.0, "waits for an approval for 60 s"),
    ],
)
def test_a_rule_says_what_it_waits_for(cause: str, seconds: float, text: str) -> None:
    assert _describe_cause(cause, seconds) == text
