"""The canonical playbook: one frozen value for each section of the document."""

from typing import Any, Literal

import msgspec

from noetl_contracts.payloads import COLLECTED_BYTES_MAX

# A declared number or duration (seconds) is a number, or text holding a whole-value template.
Number = int | float | str
# A condition: template text, or a YAML boolean.
Expression = str | bool


def get_document_key(field: str) -> str:
    """Spell a field as the document does: `in_` is `in`, `api_version` is `apiVersion`."""
    return "apiVersion" if field == "api_version" else field.rstrip("_")


class CanonicalValue(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename=get_document_key
):
    """A value of the canonical model; absent fields hold their stated defaults."""


PriorityName = Literal["high", "normal", "low"]
UndefinedMode = Literal["strict", "lenient"]


class Requires(CanonicalValue, frozen=True, kw_only=True):
    """Tool kinds that must be enabled on the target, and informational features."""

    tools: tuple[str, ...] = ()
    features: tuple[str, ...] = ()


class ExecDefaults(CanonicalValue, frozen=True, kw_only=True):
    """What tasks have that say nothing themselves."""

    timeout_s: float | None = None


class ExecFailure(CanonicalValue, frozen=True, kw_only=True):
    """What an unhandled failure does to other branches."""

    mode: Literal["fail_fast", "drain"] = "fail_fast"


class ExecResults(CanonicalValue, frozen=True, kw_only=True):
    """How results are kept by default."""

    reference_first: bool = True
    inline_max_bytes: int | None = None


class ExecPolicy(CanonicalValue, frozen=True, kw_only=True):
    """Execution-wide defaults and limits."""

    defaults: ExecDefaults = ExecDefaults()
    failure: ExecFailure = ExecFailure()
    results: ExecResults = ExecResults()
    limits: dict[str, int] = msgspec.field(default_factory=dict)


class ExecSpec(CanonicalValue, frozen=True, kw_only=True):
    """Where an execution begins and ends, and within which bounds."""

    entry_step: str | None = None
    final_step: str | None = None
    no_next_is_error: bool = False
    timeout: Number | None = None
    deadline: Number | None = None
    loop_mode: str | None = None
    # What a test of a missing value does. Parsing always sets it; a model that was stored without
    # it is lenient, as playbooks were then.
    undefined: UndefinedMode | None = None
    pool: str | None = None
    priority: PriorityName | None = None
    policy: ExecPolicy = ExecPolicy()

    @property
    def is_lenient(self) -> bool:
        """Tell whether a test of a missing value is false."""
        return self.undefined != "strict"


class Executor(CanonicalValue, frozen=True, kw_only=True):
    """How the playbook wants to be run."""

    profile: Literal["local", "distributed", "auto"] = "auto"
    version: str | None = None
    requires: Requires = Requires()
    spec: ExecSpec = ExecSpec()


LoopMode = Literal["sequential", "parallel", "chunked", "cursor", "fanout"]
FailureMode = Literal["drain", "fail_fast", "best_effort"]
StoreKind = Literal[
    "auto",
    "memory",
    "kv",
    "disk",
    "pvc",
    "object",
    "s3",
    "minio",
    "gcs",
    "azure",
    "db",
    "eventlog",
    "duckdb",
]
ActionName = Literal["continue", "retry", "jump", "break", "fail"]


class Metadata(CanonicalValue, frozen=True, kw_only=True):
    """Who the playbook is; `path` is its catalog key."""

    name: str
    path: str
    version: str | None = None
    description: str | None = None
    tags: tuple[str, ...] = ()
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    exposed_in_ui: bool | None = None
    extra: dict[str, Any] = msgspec.field(default_factory=dict)


class Action(CanonicalValue, frozen=True, kw_only=True):
    """What a matching rule does; `set` keys are `ctx.x` or `iter.x`."""

    do: ActionName
    attempts: int | str = 3
    backoff: Literal["none", "fixed", "linear", "exponential"] | None = None
    delay: Number | None = None
    max_delay: Number = 300
    to: str | None = None
    message: str | None = None
    set: dict[str, Any] = msgspec.field(default_factory=dict)
    on_bound: Literal["fail", "stop"] = "fail"
    jitter: Literal["full", "none"] | None = None


class Rule(CanonicalValue, frozen=True, kw_only=True):
    """A policy rule; without `when` it is the `else`."""

    when: Expression | None = None
    then: Action


class Assertion(CanonicalValue, frozen=True, kw_only=True):
    """Inputs that must be present and not null, and keys that the result must have."""

    expects: tuple[str, ...] = ()
    returns: tuple[str, ...] = ()


class Store(CanonicalValue, frozen=True, kw_only=True):
    """Which backend keeps a payload."""

    kind: StoreKind = "auto"
    bucket: str | None = None
    prefix: str | None = None
    compression: Literal["none", "gzip", "zstd"] | None = None
    credential: str | None = None
    ttl: Number | None = None


class Selection(CanonicalValue, frozen=True, kw_only=True):
    """A small field kept beside a reference; `path` has no leading `$.`."""

    path: str
    as_: str


class Accumulate(CanonicalValue, frozen=True, kw_only=True):
    """A value collected over repeated runs of one task, or epochs of a step."""

    enabled: bool = True
    strategy: Literal["append", "concat", "merge", "replace"] = "append"
    merge_path: str | None = None
    manifest_as: str = "accumulated"
    on_success: bool = True
    on_error: bool = False
    max_items: int | None = None
    max_bytes: int = COLLECTED_BYTES_MAX


class Output(CanonicalValue, frozen=True, kw_only=True):
    """How a result is kept and what stays readable beside its reference.

    `sink` describes a dataset that the rows go to, unrendered.
    """

    inline_max_bytes: int | None = None
    preview_max_bytes: int = 1024
    store: Store = Store()
    scope: Literal["step", "execution", "workflow", "permanent"] = "execution"
    select: tuple[Selection, ...] = ()
    accumulate: Accumulate | None = None
    as_: str | None = None
    format: Literal["auto", "json", "arrow", "parquet"] = "auto"
    partition_by: tuple[str, ...] = ()
    sink: dict[str, Any] | None = None


class Stream(CanonicalValue, frozen=True, kw_only=True):
    """How a task emits its rows in chunks."""

    chunk_rows: int = 1000
    chunk_bytes: int = 4 * 1024 * 1024
    max_ahead: int = 4


class RateLimit(CanonicalValue, frozen=True, kw_only=True):
    """How fast the calls of all tasks with the same key may go, over all workers together."""

    key: str
    rate: Number
    per: Number = 1
    burst: int | str = 1


class Task(CanonicalValue, frozen=True, kw_only=True):
    """One tool call; `fields` are unrendered. `set` writes a variable, or `ctx.x` and `iter.x`."""

    name: str
    kind: str
    fields: dict[str, Any] = msgspec.field(default_factory=dict)
    input: dict[str, Any] = msgspec.field(default_factory=dict)
    auth: Any = None
    timeout: Number | dict[str, Any] | None = None
    set: dict[str, Any] = msgspec.field(default_factory=dict)
    output: Output | None = None
    stream: Stream | None = None
    assert_: Assertion | None = None
    rules: tuple[Rule, ...] = ()
    on_unmatched: Literal["default", "continue", "fail"] = "default"
    rate_limit: RateLimit | None = None


class Failure(CanonicalValue, frozen=True, kw_only=True):
    """When a loop's failed units make the loop fail."""

    mode: FailureMode
    max_failed: int | str | None = None
    min_success: int | str | None = None


class Frame(CanonicalValue, frozen=True, kw_only=True):
    """A leased window of rows: the unit of claiming, heartbeat, commit and recovery."""

    max_rows: Number = 1
    max_seconds: Number = 30
    max_bytes: Number = 64 * 1024 * 1024
    lease_seconds: Number = 120
    heartbeat_seconds: Number = 30
    row_concurrency: Number = 1
    process: Literal["row", "frame"] = "row"
    verify_ipc: bool = False
    retry_mode: Literal["whole_frame"] = "whole_frame"
    engine: str = "auto"
    transaction: bool | str = False
    max_attempts: Number = 3


class FanoutOpts(CanonicalValue, frozen=True, kw_only=True):
    """How a collection is cut into shards."""

    shard_size: Number = 1
    partitions: Number | None = None
    partition_by: tuple[str, ...] = ()
    key: str | None = None
    max_shard_retries: Number = 2
    fail_fast: bool = False
    allow_partial: bool = False


class LoopResults(CanonicalValue, frozen=True, kw_only=True):
    """How item results are kept."""

    preserve_order: bool = True


class LoopPolicy(CanonicalValue, frozen=True, kw_only=True):
    """Where the units of a loop run and what their failures mean."""

    exec: Literal["distributed", "local"] = "distributed"
    failure: Failure | None = None
    results: LoopResults = LoopResults()


class LoopSpec(CanonicalValue, frozen=True, kw_only=True):
    """The loop's numbers; `frame` is present exactly for chunked, cursor and fanout."""

    mode: LoopMode
    max_in_flight: int | str
    chunk_size: int | str | None = None
    frame: Frame | None = None
    fanout: FanoutOpts | None = None
    collect: Literal["all", "none"] = "all"
    max_attempts: int = 3
    policy: LoopPolicy = LoopPolicy()


class CursorOptions(CanonicalValue, frozen=True, kw_only=True):
    """How often an idle slot asks again, and how long a claim may take."""

    poll_interval_ms: Number = 200
    statement_timeout_s: Number = 60


class Cursor(CanonicalValue, frozen=True, kw_only=True):
    """A queue table that slots claim rows from."""

    kind: Literal["postgres"] = "postgres"
    auth: Any
    claim: str
    params: Any = None
    options: CursorOptions = CursorOptions()


class Loop(CanonicalValue, frozen=True, kw_only=True):
    """Iteration over a collection (`in`) or a queue (`cursor`); exactly one is present."""

    in_: Any = None
    cursor: Cursor | None = None
    iterator: str
    spec: LoopSpec


class ReduceSpec(CanonicalValue, frozen=True, kw_only=True):
    """How the parts are combined."""

    mode: Literal["single", "tree"] = "single"
    fan_in: Number = 16
    max_in_flight: Number = 16
    start: Literal["after_fanin", "eager"] = "after_fanin"
    accept_partial: bool = False
    frame: Frame = Frame()


class Reduce(CanonicalValue, frozen=True, kw_only=True):
    """A step that consumes the outputs of loop steps and makes one output."""

    from_: tuple[str, ...]
    iterator: str = "parts"
    spec: ReduceSpec = ReduceSpec()


class Allow(CanonicalValue, frozen=True, kw_only=True):
    """An admission verdict."""

    allow: bool


class AdmitRule(CanonicalValue, frozen=True, kw_only=True):
    """An admission rule; without `when` it is the `else`."""

    when: Expression | None = None
    then: Allow


class Admit(CanonicalValue, frozen=True, kw_only=True):
    """Whether an activation may run."""

    mode: Literal["exclusive"] = "exclusive"
    on_deny: Literal["skip", "fail"] = "skip"
    rules: tuple[AdmitRule, ...]


class Lifecycle(CanonicalValue, frozen=True, kw_only=True):
    """Bounds on a whole step run, and on the time since the execution began."""

    timeout_s: Number | None = None
    deadline_s: Number | None = None


class EmittedObject(CanonicalValue, frozen=True, kw_only=True):
    """An object of the playbook's domain that a step which ended well brings about or changes."""

    type: str
    id: Any
    status: str | None = None
    attributes: dict[str, Any] | str = msgspec.field(default_factory=dict)
    when: Expression | None = None
    deleted: bool = False


class Emit(CanonicalValue, frozen=True, kw_only=True):
    """Informational events appended at step end."""

    events: tuple[str, ...] = ()
    objects: tuple[EmittedObject, ...] = ()


class StepPolicy(CanonicalValue, frozen=True, kw_only=True):
    """Admission, failure and bounds of a step."""

    admit: Admit | None = None
    failure: Failure | None = None
    lifecycle: Lifecycle = Lifecycle()
    emit: Emit = Emit()


class StepSpec(CanonicalValue, frozen=True, kw_only=True):
    """What governs a step run; `timeout` is copied to `policy.lifecycle.timeout_s`."""

    timeout: Number | None = None
    deadline: Number | None = None
    pool: str | None = None
    priority: PriorityName | None = None
    policy: StepPolicy = StepPolicy()


class ArcSpec(CanonicalValue, frozen=True, kw_only=True):
    """How many chunk activations of the target may run at once."""

    max_in_flight: int | None = None


class Arc(CanonicalValue, frozen=True, kw_only=True):
    """A guarded edge to another step."""

    step: str
    on: str | None = None
    when: Expression | None = None
    set: dict[str, Any] = msgspec.field(default_factory=dict)
    spec: ArcSpec = ArcSpec()


class NextSpec(CanonicalValue, frozen=True, kw_only=True):
    """How arcs are chosen."""

    mode: Literal["exclusive", "inclusive"] = "exclusive"
    on_no_match: Literal["complete", "quiet", "fail"] = "complete"


class Next(CanonicalValue, frozen=True, kw_only=True):
    """Where to go after a step."""

    spec: NextSpec = NextSpec()
    arcs: tuple[Arc, ...] = ()


class Incremental(CanonicalValue, frozen=True, kw_only=True):
    """How a step goes on reading its source where its last success ended."""

    cursor: str
    from_: str
    initial: Any
    type: Literal["timestamp", "date", "integer", "text"] | None = None
    lag: Number = 0
    task: str | None = None
    rows: str | None = None


class Step(CanonicalValue, frozen=True, kw_only=True):
    """One node of the workflow; `tool` is always its pipeline, each task has taken its `input`."""

    step: str
    desc: str | None = None
    spec: StepSpec = StepSpec()
    input: dict[str, Any] = msgspec.field(default_factory=dict)
    incremental: Incremental | None = None
    loop: Loop | None = None
    reduce: Reduce | None = None
    tool: tuple[Task, ...]
    output: Output | None = None
    set: dict[str, Any] = msgspec.field(default_factory=dict)
    next: Next | None = None


class WorkbookEntry(CanonicalValue, frozen=True, kw_only=True):
    """A named, reusable task."""

    name: str
    tool: Task
    desc: str | None = None
    assert_: Assertion | None = None


class KeychainEntry(CanonicalValue, frozen=True, kw_only=True):
    """A credential resolved before the first step; `fields` are the kind's own."""

    name: str
    kind: str
    fields: dict[str, Any] = msgspec.field(default_factory=dict)


class InputDeclaration(CanonicalValue, frozen=True, kw_only=True):
    """What a caller should know of an input; a start without a required one is refused."""

    required: bool = False
    description: str | None = None


class Playbook(CanonicalValue, frozen=True, kw_only=True):
    """A whole playbook; `vars` are written to `ctx` at start, rendered after `workload`."""

    api_version: str = "noetl.io/v2"
    kind: Literal["Playbook"] = "Playbook"
    metadata: Metadata
    executor: Executor = Executor()
    workload: dict[str, Any] = msgspec.field(default_factory=dict)
    vars: dict[str, Any] = msgspec.field(default_factory=dict)
    declared_inputs: dict[str, InputDeclaration] = msgspec.field(default_factory=dict)
    keychain: tuple[KeychainEntry, ...] = ()
    workbook: tuple[WorkbookEntry, ...] = ()
    workflow: tuple[Step, ...]
    inputs: tuple[tuple[str, ...], ...] | None = None  # the paths that are read, set by parsing

    @property
    def known_workload(self) -> dict[str, Any]:
        """Return the defaults of the inputs, with null for those that are required."""
        return {**dict.fromkeys(self.declared_inputs), **self.workload}
