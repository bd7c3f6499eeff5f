"""Secrets stay out of log lines and spans, wherever in them they stood."""

import logging
from collections.abc import Iterator

import pytest
import structlog
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from noetl_chassis import redaction, telemetry
from noetl_chassis.observability import tracing

SEALED = "sealed:v1:0123abcd:QUJDREVGRw-_x"


@pytest.fixture
def _logs() -> Iterator[None]:
    structlog.reset_defaults()
    handlers, level = logging.getLogger().handlers, logging.getLogger().level
    yield
    structlog.reset_defaults()
    logging.getLogger().handlers = handlers
    logging.getLogger().setLevel(level)


def _fail() -> None:
    raise ValueError("no hunter22 here")


@pytest.mark.usefixtures("_logs")
def test_a_log_line_is_masked_as_a_whole(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.configure_logs(service="s", instance="i", log_format="json", log_level="info")
    with redaction.add_masker(lambda text: text.replace("hunter22", "***")):
        try:
            _fail()
        except ValueError:
            structlog.get_logger("x").exception("at hunter22", a={"hunter22": ["hunter22"]})
        logging.getLogger("library").warning("said %s and %s", "hunter22", SEALED)
    structlog.get_logger("x").info("later hunter22")
    first, second, third = capsys.readouterr().err.splitlines()
    assert "hunter22" not in first + second
    assert "ValueError: no *** here" in first
    assert "QUJD" not in second
    assert "later hunter22" in third


@pytest.mark.usefixtures("_logs")
def test_a_line_that_cannot_be_written_is_not_shown_raw(
    capsys: pytest.CaptureFixture[str],
) -> None:
    telemetry.configure_logs(service="s", instance="i", log_format="json", log_level="info")
    logging.getLogger("x").warning("%d is hunter22", "hunter22")
    assert capsys.readouterr().err == "a log line of x is lost: TypeError\n"


def test_a_span_says_which_error_ended_it_and_never_its_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("opentelemetry.trace.get_tracer", provider.get_tracer)
    with (
        pytest.raises(ValueError, match="hunter22"),
        tracing.start_span("work", attributes={"a": 1}),
    ):
        _fail()
    (span,) = exporter.get_finished_spans()
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "ValueError")
    assert "hunter22" not in span.to_json()


def test_sealed_values_are_shown_as_a_mask() -> None:
    assert redaction.mask_sealed_values(f'{{"a":"{SEALED}"}}') == '{"a":"***"}'
    assert redaction.mask_sealed_bytes(f"x {SEALED} y".encode()) == b"x *** y"
    plain = b"nothing sealed"
    assert redaction.mask_sealed_bytes(plain) is plain
