"""Without an exporter spans are names alone, and traces still go through."""

import pytest
from opentelemetry import trace

from noetl_chassis import tracing

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(autouse=True)
def _no_exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "get_tracer_provider", tracing.Unrecorded)


def _named(parent: str | None) -> list[str]:
    with tracing.span("work", attributes={}, parent=parent):
        said = tracing.traceparent()
    assert said is not None
    return said.split("-")


def test_a_span_goes_on_in_the_trace_that_it_came_with_under_its_own_name() -> None:
    _, trace_id, span_id, flags = PARENT.split("-")
    named = _named(PARENT)
    assert (named[1], named[3]) == (trace_id, flags)
    assert named[2] != span_id
    assert tracing.traceparent() is None


def test_a_trace_that_is_not_sampled_stays_so() -> None:
    assert _named(PARENT[:-2] + "00")[3] == "00"


def test_without_a_parent_a_trace_begins_and_what_is_inside_belongs_to_it() -> None:
    with tracing.span("outer", attributes={}):
        outer = tracing.traceparent()
        inner = _named(None)
    assert outer is not None
    assert outer.split("-")[1] == inner[1]
    assert outer.split("-")[2] != inner[2]
    assert _named("what is this")[1] != inner[1]


def test_an_error_passes_and_the_span_ends() -> None:
    with pytest.raises(KeyError), tracing.span("work", attributes={}):
        raise KeyError
    assert tracing.traceparent() is None
