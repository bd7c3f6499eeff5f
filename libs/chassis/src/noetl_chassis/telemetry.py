"""OpenTelemetry and structured logs: the only importer of the SDK."""

import contextlib
import importlib
import logging
import re
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from importlib import metadata
from typing import Any

import msgspec
from msgspec import Struct
from opentelemetry import metrics, trace
from opentelemetry._logs import Logger, SeverityNumber
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, LogRecordExporter
from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricReader,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from prometheus_client import CollectorRegistry, generate_latest

from noetl_chassis import redaction, settings
from noetl_chassis.observability import instruments, names, span_recording
from noetl_chassis.structured_log import structlog
from noetl_contracts.errors import Permanent
from noetl_contracts.written_names import escape_json, escape_line, escape_text

_OTLP = "opentelemetry.exporter.otlp.proto.http"
_SECRET_FIELD = re.compile(
    r"password|passwd|secret|token|authorization|api_?key|private_?key|cookie|credential_value",
    re.IGNORECASE,
)
_encoder = msgspec.json.Encoder(enc_hook=repr)
# Their own chatter about reconnecting repeats what the adapters report.
_QUIET = ("nats", "aiohttp", "asyncio", "botocore", "boto3", "urllib3")
# What these say of a collector that is away would be one more line for it.
_OWN_LOGGERS = ("opentelemetry", "requests", "urllib3")
# The record has them beside its fields.
_BESIDE = frozenset(
    {
        "event",
        "level",
        "timestamp",
        names.FIELD_INSTANCE,
        names.FIELD_SERVICE,
        names.FIELD_SPAN,
        names.FIELD_TRACE,
    }
)
_NOWHERE: Mapping[str, str] = {}
# OpenTelemetry's names of a place.
_PLACE_ATTRIBUTES = {
    names.CLUSTER: "k8s.cluster.name",
    names.REGION: "cloud.region",
    names.ZONE: "cloud.availability_zone",
    names.NODE: "host.name",
}
_SEVERITY_BY_LEVEL = (
    (logging.CRITICAL, SeverityNumber.FATAL),
    (logging.ERROR, SeverityNumber.ERROR),
    (logging.WARNING, SeverityNumber.WARN),
    (logging.INFO, SeverityNumber.INFO),
)


class OtlpMissing(Permanent):
    """An OTLP endpoint is configured but its exporter is not installed."""


class ProcessTelemetry(Struct, frozen=True, kw_only=True):
    """What a process shows of itself."""

    registry: CollectorRegistry
    meters: MeterProvider
    tracers: TracerProvider

    def render_metrics(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        instruments.flush_histograms()
        return generate_latest(self.registry)


@contextmanager
def start_telemetry(
    *,
    service: str,
    instance: str,
    log_format: str = "json",
    log_level: str = "info",
    otlp_endpoint: str = "",
    place: Mapping[str, str] = _NOWHERE,
) -> Iterator[ProcessTelemetry]:
    """Log and measure while the block runs; the process has one telemetry.

    `place` is the process' cluster, region, zone and node, as far as they are known.
    """
    configure_logs(service=service, instance=instance, log_format=log_format, log_level=log_level)
    version = find_version(service)
    resource = Resource.create(
        {
            "service.name": f"noetl-{service}",
            "service.namespace": "noetl",
            "service.instance.id": instance,
            "service.version": version,
            **{_PLACE_ATTRIBUTES[key]: name for key, name in place.items()},
        }
    )
    registry = CollectorRegistry()
    readers: list[MetricReader] = [
        PrometheusMetricReader(registry=registry, scope_info_enabled=False)
    ]
    tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
    lines = LoggerProvider(resource=resource, shutdown_on_exit=False)
    if otlp_endpoint:
        exporters = _load_otlp_exporters(otlp_endpoint)
        tracers.add_span_processor(BatchSpanProcessor(exporters.spans))
        readers.append(PeriodicExportingMetricReader(exporters.measurements))
        lines.add_log_record_processor(BatchLogRecordProcessor(exporters.lines))
        line_formatter = _build_line_formatter(
            service=service, instance=instance, log_format="json"
        )
        logging.getLogger().addHandler(
            LogExportHandler(lines.get_logger(instruments.SCOPE), line_formatter)
        )
    meters = MeterProvider(
        readers,
        resource=resource,
        shutdown_on_exit=False,
        # Examples of measurements name their spans, and nobody is told of spans otherwise.
        exemplar_filter=None if otlp_endpoint else AlwaysOffExemplarFilter(),
    )
    metrics.set_meter_provider(meters)
    trace.set_tracer_provider(tracers)
    instruments.set_gauge(
        names.BUILD_INFO, 1, labels={names.SERVICE: service, names.VERSION: version}
    )
    if place:
        labels = {key: place.get(key, "") for key in _PLACE_ATTRIBUTES}
        instruments.set_gauge(names.PLACE_INFO, 1, labels=labels)
    try:
        with contextlib.nullcontext() if otlp_endpoint else span_recording.suspend_span_recording():
            yield ProcessTelemetry(registry=registry, meters=meters, tracers=tracers)
    finally:
        tracers.shutdown()
        meters.shutdown()
        lines.shutdown()


def configure_logs(*, service: str, instance: str, log_format: str, log_level: str) -> None:
    """Send every log record, also those of libraries, to stderr, one line each."""
    level = logging.getLevelNamesMapping()[log_level.upper()]
    structlog.configure(
        processors=[
            *_list_line_processors(service, instance),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = _SafeStreamHandler(sys.stderr)
    handler.setFormatter(
        _build_line_formatter(service=service, instance=instance, log_format=log_format)
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))


def _list_line_processors(service: str, instance: str) -> list[Any]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _build_origin_adder(service, instance),
        add_trace_ids,
        structlog.processors.format_exc_info,
        mask_secrets,
    ]


def _build_line_formatter(*, service: str, instance: str, log_format: str) -> logging.Formatter:
    """Build the formatter that writes the records of every logger as lines."""
    render: Any = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    if log_format == "json":
        render = structlog.processors.JSONRenderer(serializer=_encode_line)
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_list_line_processors(service, instance),
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            *([] if log_format == "json" else [escape_fields]),
            render,
            mask_line,
        ],
    )


class _SafeStreamHandler(logging.StreamHandler[Any]):
    """Writes to a stream; a line that cannot be written is not shown in its raw form instead."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's own name)
        """Say that a line is lost, and nothing of what stood in it."""
        kind = sys.exc_info()[0]
        with contextlib.suppress(OSError, ValueError):
            reason = "unknown" if kind is None else kind.__name__
            sys.stderr.write(f"a log line of {record.name} is lost: {reason}\n")


def add_trace_ids(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Add the current span to a log record."""
    context = trace.get_current_span().get_span_context()
    if context.is_valid:
        event[names.FIELD_TRACE] = f"{context.trace_id:032x}"
        event[names.FIELD_SPAN] = f"{context.span_id:016x}"
    return event


def mask_secrets(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Hide fields that are named like secrets, and passwords in addresses."""
    for key, value in event.items():
        event[key] = _mask_field(key, value)
    return event


def escape_fields(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Show control characters of what is logged; a traceback alone has several lines."""
    escaped_event = {escape_line(str(key)): value for key, value in event.items()}
    for key, value in escaped_event.items():
        if key == "exception":
            escaped_event[key] = escape_text(str(value))
        elif isinstance(value, str):
            escaped_event[key] = escape_line(value)
    return escaped_event


def mask_line(_logger: Any, _method: str, line: Any) -> Any:
    """Mask in a finished line every secret that this process knows."""
    return redaction.mask_log_line(line) if isinstance(line, str) else line


def _mask_field(key: str, value: Any) -> Any:
    if _SECRET_FIELD.search(key) and value is not None:
        return settings.MASK
    match value:
        case str():
            return settings.mask_addresses(value)
        case dict():
            return {name: _mask_field(str(name), item) for name, item in value.items()}
        case list() | tuple():
            return [_mask_field("", item) for item in value]
        case _:
            return value


def _build_origin_adder(service: str, instance: str) -> Any:
    def add_origin(
        _logger: Any, _method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        event.setdefault(names.FIELD_SERVICE, service)
        event.setdefault(names.FIELD_INSTANCE, instance)
        return event

    return add_origin


def _encode_line(event: Any, **_options: Any) -> str:
    return escape_json(_encoder.encode(event).decode())


def find_version(service: str) -> str:
    """Name the version of a service as it is installed."""
    try:
        return metadata.version(f"noetl-{service}")
    except metadata.PackageNotFoundError:
        return "unknown"


class _Exporters(Struct, frozen=True, kw_only=True):
    """What sends spans, measurements and log lines to a collector."""

    spans: SpanExporter
    measurements: MetricExporter
    lines: LogRecordExporter


def _load_otlp_exporters(endpoint: str) -> _Exporters:
    """Find the exporters of the `otlp` extra."""
    try:
        spans = importlib.import_module(f"{_OTLP}.trace_exporter")
        measurements = importlib.import_module(f"{_OTLP}.metric_exporter")
        lines = importlib.import_module(f"{_OTLP}._log_exporter")
    except ModuleNotFoundError as failure:
        raise OtlpMissing(
            "an OTLP endpoint is set but the exporter is missing: install noetl-chassis[otlp]"
        ) from failure
    base = endpoint.rstrip("/")
    return _Exporters(
        spans=spans.OTLPSpanExporter(endpoint=f"{base}/v1/traces"),
        measurements=measurements.OTLPMetricExporter(endpoint=f"{base}/v1/metrics"),
        lines=lines.OTLPLogExporter(endpoint=f"{base}/v1/logs"),
    )


class LogExportHandler(logging.Handler):
    """Hands every line over as its formatter writes it: as JSON, its secrets masked."""

    def __init__(self, logger: Logger, formatter: logging.Formatter) -> None:
        super().__init__()
        self._logger = logger
        self.setFormatter(formatter)

    def filter(self, record: logging.LogRecord) -> bool:
        """Leave out what the exporters say themselves."""
        return record.name.partition(".")[0] not in _OWN_LOGGERS and super().filter(record)

    def emit(self, record: logging.LogRecord) -> None:
        """Hand a line over, with the span that is current."""
        try:
            fields: dict[str, Any] = msgspec.json.decode(self.format(record))
            self._logger.emit(
                timestamp=int(record.created * 1_000_000_000),
                severity_number=_find_severity(record.levelno),
                severity_text=record.levelname,
                body=str(fields.get("event", "")),
                attributes={
                    key: value
                    for key, value in fields.items()
                    if key not in _BESIDE and value is not None
                },
            )
        except (msgspec.MsgspecError, TypeError, ValueError):
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's own name)
        """Let go of a line that cannot be handed over: the log itself has it."""


def _find_severity(level: int) -> SeverityNumber:
    for level_min, severity in _SEVERITY_BY_LEVEL:
        if level >= level_min:
            return severity
    return SeverityNumber.DEBUG
