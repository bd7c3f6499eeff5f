"""Every metric, span, attribute and log field that leaves a process, with its meaning."""

from enum import StrEnum

from msgspec import Struct


class MetricKind(StrEnum):
    """How a metric moves."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(Struct, frozen=True, kw_only=True):
    """One metric; `labels` is all that may be attached, never an execution, frame, row or URL.

    `name` is what Prometheus shows.
    """

    name: str
    kind: MetricKind
    unit: str
    meaning: str
    labels: tuple[str, ...] = ()

    @property
    def instrument_name(self) -> str:
        """Return the name in OpenTelemetry, where counters have no `_total`: exporters add it."""
        return self.name.removesuffix("_total")


def _declare_counter(name: str, unit: str, meaning: str, *labels: str) -> Metric:
    return Metric(name=name, kind=MetricKind.COUNTER, unit=unit, meaning=meaning, labels=labels)


def _declare_gauge(name: str, unit: str, meaning: str, *labels: str) -> Metric:
    return Metric(name=name, kind=MetricKind.GAUGE, unit=unit, meaning=meaning, labels=labels)


def _declare_histogram(name: str, unit: str, meaning: str, *labels: str) -> Metric:
    return Metric(name=name, kind=MetricKind.HISTOGRAM, unit=unit, meaning=meaning, labels=labels)


# Labels.
EVENT_TYPE = "event_type"
FACT = "fact"
REASON = "reason"
OUTCOME = "outcome"
LOOP = "loop"
ERROR = "error"
STREAM = "stream"
CHECKPOINT = "checkpoint"
CONSUMER = "consumer"
POOL = "pool"
LANE = "lane"
WORKER = "worker"
TIER = "tier"
OPERATION = "op"
TOOL = "tool"
SERVICE = "service"
POINT = "point"
VERSION = "version"
DISTANCE = "distance"
METHOD = "method"
ROUTE = "route"
STATUS = "status"
KIND = "kind"
DATABASE = "database"
TENANT = "tenant"
ORGANIZATION = "organization"
STAGE_KIND = "stage_kind"
CLUSTER = "cluster"
REGION = "region"
ZONE = "zone"
NODE = "node"
INDEX = "index"

# Every process.
BUILD_INFO = _declare_gauge("noetl_build_info", "1", "Always 1; says what runs.", SERVICE, VERSION)
PLACE_INFO = _declare_gauge(
    "noetl_place_info",
    "1",
    "Always 1; says where a service runs.",
    CLUSTER,
    REGION,
    ZONE,
    NODE,
)
CONNECTIONS_PEAK = _declare_gauge(
    "noetl_postgres_connections_peak",
    "{connection}",
    "Most connections to PostgreSQL in use at once within the last one to two minutes.",
    DATABASE,
)
CONNECTION_WAITERS_PEAK = _declare_gauge(
    "noetl_postgres_waiters_peak",
    "{caller}",
    "Most callers that waited for a connection at once within the last one to two minutes.",
    DATABASE,
)
FAILPOINTS_REACHED = _declare_counter(
    "noetl_failpoints_reached_total", "{passing}", "Passings of armed failpoints.", POINT
)
LOOP_FAILURES = _declare_counter(
    "noetl_loop_failures_total", "{turn}", "Turns of a loop that ended in an error.", LOOP, ERROR
)
LOOP_FAILURES_IN_ROW = _declare_gauge(
    "noetl_loop_failures_in_row",
    "{turn}",
    "Turns of a loop that ended in an error since its last good one.",
    LOOP,
)
LOOP_DURATION = _declare_histogram(
    "noetl_loop_turn_duration_seconds", "s", "How long one turn of a loop took.", LOOP
)

# Planner.
EVENTS_APPENDED = _declare_counter(
    "noetl_events_appended_total", "{event}", "Events appended to the ledger.", EVENT_TYPE
)
APPEND_DURATION = _declare_histogram(
    "noetl_ledger_append_duration_seconds", "s", "How long one append transaction took."
)
FACTS_DECIDED = _declare_counter("noetl_facts_decided_total", "{fact}", "Facts decided on.", FACT)
COMMIT_REJECTED = _declare_counter(
    "noetl_commit_rejected_total", "{fact}", "Facts refused: old fence or terminal.", REASON
)
REPORTS_REFUSED = _declare_counter(
    "noetl_reports_refused_total",
    "{message}",
    "Reports refused: a worker reported what another holds, or sent a request.",
    REASON,
)
WORKER_FREE = _declare_gauge(
    "noetl_worker_free_commands",
    "{command}",
    "What a worker last said it could still take.",
    WORKER,
)
PLACEMENTS = _declare_counter(
    "noetl_placements_total",
    "{command}",
    "Commands taken whose inputs have a place, by how far from it.",
    DISTANCE,
)
OFFERS = _declare_counter(
    "noetl_offers_total",
    "{command}",
    "Commands offered to the nearest worker, by what became of it.",
    OUTCOME,
)
SHARDS_OWNED = _declare_gauge("noetl_shards_owned", "{shard}", "Shards that this planner owns.")
VERSION_CONFLICTS = _declare_counter(
    "noetl_version_conflicts_total", "{append}", "Appends refused because a history had moved on."
)
EXECUTIONS_ENDED = _declare_counter(
    "noetl_executions_ended_total", "{execution}", "Executions that reached an end.", OUTCOME
)

TRIGGER_MESSAGES = _declare_counter(
    "noetl_trigger_messages_total",
    "{message}",
    "Messages that start playbooks, by what became of them.",
    OUTCOME,
)
REQUEST_DURATION = _declare_histogram(
    "noetl_http_request_duration_seconds",
    "s",
    "How long the API took to answer; the status is its class, such as 2xx.",
    METHOD,
    ROUTE,
    STATUS,
)
WORK_LOST = _declare_counter(
    "noetl_work_lost_total",
    "{attempt}",
    "Attempts that were lost with their worker or its lease, however it was noticed.",
    KIND,
)
EVENT_RESULT_BYTES = _declare_histogram(
    "noetl_event_result_bytes", "By", "Bytes of the result of one event in sixteen, as JSON."
)

# Worker.
COMMANDS_TAKEN = _declare_counter(
    "noetl_commands_taken_total", "{command}", "Commands that a worker began.", LANE
)
COMMANDS_ENDED = _declare_counter(
    "noetl_commands_ended_total", "{command}", "Commands that a worker ended.", OUTCOME
)
COMMANDS_RUNNING = _declare_gauge("noetl_commands_running", "{command}", "Commands that run now.")
LEASES_LOST = _declare_counter(
    "noetl_leases_lost_total", "{command}", "Commands that a worker stopped for want of a lease."
)
FRAMES_ENDED = _declare_counter(
    "noetl_frames_ended_total", "{frame}", "Frames that ended.", OUTCOME
)
WAVES_ENDED = _declare_counter(
    "noetl_waves_ended_total", "{wave}", "Spark jobs of frames that ended.", OUTCOME
)
WAVE_FRAMES = _declare_counter("noetl_wave_frames_total", "{frame}", "Frames that Spark jobs took.")
STREAM_ROWS = _declare_counter(
    "noetl_spark_stream_rows_total",
    "{row}",
    "Rows that batches of streams have written.",
    CHECKPOINT,
)
STREAM_BATCH_DURATION = _declare_histogram(
    "noetl_spark_stream_batch_duration_seconds",
    "s",
    "How long a batch of a stream took.",
    CHECKPOINT,
)
STREAM_FILES_BEHIND = _declare_gauge(
    "noetl_spark_stream_files_behind",
    "{file}",
    "Files that had arrived when the latest batch of a stream began, and were not in it.",
    CHECKPOINT,
)
FRAME_ROWS = _declare_counter("noetl_frame_rows_total", "{row}", "Rows that frames ran.", OUTCOME)
FRAME_DURATION = _declare_histogram("noetl_frame_duration_seconds", "s", "How long a frame ran.")
TOOL_CALLS = _declare_counter("noetl_tool_calls_total", "{call}", "Calls of tools.", TOOL, OUTCOME)
TOOL_SECONDS = _declare_counter(
    "noetl_tool_seconds_total", "s", "Time spent in calls of tools.", TOOL
)
RATE_LIMITED_CALLS = _declare_counter(
    "noetl_rate_limited_calls_total", "{call}", "Calls that went under a rate limit."
)
RATE_LIMIT_WAITED = _declare_counter(
    "noetl_rate_limit_wait_seconds_total", "s", "Time that calls waited for their rate limit."
)
RATE_LIMIT_CONTENTIONS = _declare_counter(
    "noetl_rate_limit_contentions_total", "{swap}", "Times that another worker was faster."
)
PAYLOAD_BYTES = _declare_counter(
    "noetl_payload_bytes_total", "By", "Bytes moved to and from the payload store.", TIER, OPERATION
)
STORE_WAITS = _declare_gauge(
    "noetl_store_waits", "{call}", "Calls of a worker that wait for a payload store that is away."
)
STORAGE_READS = _declare_counter(
    "noetl_storage_reads_total", "{read}", "Reads that a tier of payloads was asked.", TIER, OUTCOME
)
REFERENCE_RESOLVE_DURATION = _declare_histogram(
    "noetl_reference_resolve_seconds",
    "s",
    "How long it took to read the content of a reference, by the tier that had it.",
    TIER,
)
STORAGE_ADMISSIONS = _declare_counter(
    "noetl_storage_admissions_total", "{payload}", "Copies that a tier was offered.", TIER, OUTCOME
)
STORAGE_TIER_BYTES = _declare_gauge(
    "noetl_storage_tier_bytes", "By", "Bytes that a tier holds.", TIER
)
STORAGE_SWEPT = _declare_counter(
    "noetl_storage_swept_total", "{segment}", "Shared segments that a sweep removed.", REASON
)

# Outbox.
OUTBOX_ROWS = _declare_gauge(
    "noetl_outbox_rows", "{row}", "Committed messages that are not published."
)
OUTBOX_OLDEST_AGE = _declare_gauge(
    "noetl_outbox_oldest_age_seconds", "s", "Age of the oldest message that is not published."
)
OUTBOX_PUBLISHED = _declare_counter(
    "noetl_outbox_published_total", "{row}", "Outbox rows taken for publishing.", OUTCOME
)

# Projector.
PROJECTOR_LAG_EVENTS = _declare_gauge(
    "noetl_projector_lag_events", "{message}", "Messages of this shard that are not projected."
)
PROJECTOR_LAG_SECONDS = _declare_gauge(
    "noetl_projector_lag_seconds", "s", "Age of the last projected event when it was projected."
)
EVENTS_PROJECTED = _declare_counter(
    "noetl_events_projected_total", "{event}", "Events folded into projections."
)
EVENTS_READ_FOR_GAPS = _declare_counter(
    "noetl_projector_gap_events_total", "{event}", "Events read from the ledger to close a gap."
)
PROJECTOR_MESSAGES = _declare_counter(
    "noetl_projector_messages_total", "{message}", "Messages by what became of them.", OUTCOME
)
PROJECTOR_DUPLICATES = _declare_counter(
    "noetl_projector_duplicate_events_total", "{event}", "Events dropped as projected already."
)
PROJECTOR_MISPLACED = _declare_counter(
    "noetl_projector_misplaced_total", "{message}", "Messages under another shard's subject."
)
PROJECTOR_UNOWNED = _declare_counter(
    "noetl_projector_unowned_total", "{message}", "Messages of another projector's shards."
)
PROJECTOR_UNSHARDABLE = _declare_counter(
    "noetl_projector_unshardable_total", "{message}", "Messages whose subject names no shard."
)
PROJECTOR_STALE = _declare_counter(
    "noetl_projector_stale_writes_total",
    "{execution}",
    "Writes left out because another projector had moved the position.",
)
PROJECTOR_GAPS = _declare_counter(
    "noetl_projector_gaps_total", "{gap}", "Gaps between messages that the ledger closed."
)
PROJECTOR_CHECKPOINT_AGE = _declare_gauge(
    "noetl_projector_checkpoint_age_seconds", "s", "Time since this projector moved a position."
)
CHECKPOINT_AGE = _declare_gauge(
    "noetl_checkpoint_age_seconds", "s", "Time since an epoch of this projector's shards."
)
PROJECTORS_DECLARED = _declare_gauge(
    "noetl_projectors_declared",
    "{projector}",
    "How many projectors share the work, as this one was told; its own number is the index.",
    INDEX,
)
PROJECTOR_BEHIND = _declare_gauge(
    "noetl_projector_behind", "{execution}", "Executions that the ledger had to catch up."
)
PROJECTOR_POISONED = _declare_gauge(
    "noetl_projector_poisoned", "{execution}", "Executions whose history cannot be folded."
)
LINEAGE_TOLD = _declare_counter(
    "noetl_lineage_events_total", "{event}", "Run events told from the ledger."
)
LINEAGE_DELIVERIES = _declare_counter(
    "noetl_lineage_deliveries_total", "{event}", "Run events sent, by what became of them.", OUTCOME
)

# Reaper.
LEASES_EXPIRED = _declare_counter(
    "noetl_leases_expired_total", "{command}", "Commands reported lost by the reaper."
)
REQUESTS_REDRIVEN = _declare_counter(
    "noetl_requests_redriven_total", "{request}", "Unsettled requests sent again."
)
EXECUTIONS_NUDGED = _declare_counter(
    "noetl_executions_nudged_total", "{execution}", "Stalled executions that were woken."
)
LETTERS_HANDED_OVER = _declare_counter(
    "noetl_letters_handed_over_total", "{letter}", "Messages from outside that the reaper matched."
)
SCHEDULE_TIMES = _declare_counter(
    "noetl_schedule_times_total", "{time}", "Times of schedules by what became of them.", OUTCOME
)
COMMAND_BACKLOG = _declare_gauge(
    "noetl_command_backlog",
    "{command}",
    "Commands that wait for a worker or are with one.",
    POOL,
    LANE,
)
FRAME_BACKLOG = _declare_gauge(
    "noetl_frame_backlog",
    "{command}",
    "Commands and frames that wait for a worker or are with one, as each planner counts them.",
    POOL,
    LANE,
)
BACKLOG_DETAIL = _declare_gauge(
    "noetl_frame_backlog_detail",
    "{command}",
    "Commands and frames that wait or run, as projected, of the tenants with most of them.",
    TENANT,
    ORGANIZATION,
    STAGE_KIND,
    STATUS,
)
TOPOLOGY_REPAIRED = _declare_counter(
    "noetl_topology_repaired_total", "{item}", "Streams and consumers that were made again."
)
TENANT_READS_ENDED = _declare_counter(
    "noetl_tenant_reads_ended_total",
    "{session}",
    "Sessions of tenants' database roles ended because they lasted for too long.",
)
DLQ_MESSAGES = _declare_gauge(
    "noetl_dlq_messages", "{message}", "Dead letters that wait for a person."
)
DEAD_LETTERS_BURIED = _declare_counter(
    "noetl_dead_letters_total", "{message}", "Messages moved to the dead letters.", STREAM, CONSUMER
)
PAYLOADS_COLLECTED = _declare_counter(
    "noetl_payloads_collected_total",
    "{payload}",
    "Payloads put aside, brought back or removed.",
    OUTCOME,
)
PAYLOADS_PURGED_BYTES = _declare_counter(
    "noetl_payloads_purged_bytes_total", "By", "Bytes of payloads removed for good."
)
EVENTS_RETIRED = _declare_counter(
    "noetl_events_retired_total", "{event}", "Events that left the ledger, archived or dropped."
)
IS_LEADER = _declare_gauge("noetl_reaper_is_leader", "1", "1 on the instance that leads, else 0.")

# Spans and their attributes (OpenTelemetry semantic conventions where they exist).
SPAN_DECIDE = "planner decide"
SPAN_COMMAND = "worker command"
SPAN_FRAME = "worker frame"
SPAN_TOOL = "tool"
SPAN_SEND = "send"
SPAN_TRIGGER = "planner trigger"
SPAN_PROJECT = "projector apply"
SPAN_SWEEP = "reaper sweep"
SPAN_REPORT = "reaper report"
ATTR_SYSTEM = "messaging.system"
ATTR_OPERATION = "messaging.operation.type"
ATTR_DESTINATION = "messaging.destination.template"
ATTR_PARTITION = "messaging.destination.partition.id"
ATTR_CONVERSATION_ID = "messaging.message.conversation_id"
ATTR_BATCH = "messaging.batch.message_count"
ATTR_EXECUTION = "noetl.execution_id"
ATTR_STEP = "noetl.step"
ATTR_TASK = "noetl.task"
ATTR_FRAME = "noetl.frame_id"
ATTR_ATTEMPT = "noetl.attempt"
ATTR_ERROR = "error.type"
ATTR_METHOD = "http.request.method"
ATTR_STATUS = "http.response.status_code"
ATTR_ROUTE = "http.route"
ATTR_PATH = "url.path"
ATTR_URL = "url.full"
ATTR_SCHEME = "url.scheme"
ATTR_SERVER = "server.address"
ATTR_DATABASE = "db.system.name"
SYSTEM_NATS = "nats"
OPERATION_SEND = "send"
OPERATION_PROCESS = "process"
DATABASE_POSTGRESQL = "postgresql"

# Log fields.
FIELD_EXECUTION = "execution_id"
FIELD_FRAME = "frame_id"
FIELD_COMMAND = "command_id"
FIELD_STEP = "step"
FIELD_TENANT = "tenant_id"
FIELD_SERVICE = "service"
FIELD_INSTANCE = "instance"
FIELD_TRACE = "trace_id"
FIELD_SPAN = "span_id"

METRICS: tuple[Metric, ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, Metric)
)
