"""The tool kinds: their fields, other spellings, and which combinations make sense."""

import msgspec

_SCRIPT = frozenset({"script"})


class ToolKind(msgspec.Struct, frozen=True, kw_only=True):
    """What a task of one kind may say besides the fields that all tasks share.

    Exactly one field of `source` is required, if any are named.
    """

    name: str
    fields: frozenset[str]
    aliases: dict[str, str] = {}
    required: tuple[str, ...] = ()
    source: tuple[str, ...] = ()
    is_available: bool = False

    @property
    def known_fields(self) -> frozenset[str]:
        """Every field name, in any spelling."""
        return self.fields | self.aliases.keys()


def _split_names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SQL_ALIASES = {
    **dict.fromkeys(("command", "commands", "statement", "sql"), "query"),
    **dict.fromkeys(("command_b64", "commands_b64", "statement_b64", "sql_b64"), "query_b64"),
}
_DUCKDB_ALIASES = {
    **dict.fromkeys(("command", "commands", "cmd", "cmds", "queries"), "query"),
    **dict.fromkeys(("command_b64", "commands_b64", "cmd_b64", "cmds_b64"), "query_b64"),
}

HTTP = ToolKind(
    name="http",
    fields=_split_names(
        "method url params headers json body payload form files data response_type"
        " verify_ssl follow_redirects"
    ),
    aliases={"endpoint": "url"},
    required=("url",),
    is_available=True,
)
POSTGRES = ToolKind(
    name="postgres",
    fields=_split_names("query query_b64 params autocommit pool statement_timeout") | _SCRIPT,
    aliases=_SQL_ALIASES,
    source=("query", "query_b64", "script"),
    is_available=True,
)
PYTHON = ToolKind(
    name="python",
    fields=_split_names("code code_b64 libs deps requirements network") | _SCRIPT,
    source=("code", "code_b64", "script"),
    is_available=True,
)
NOOP = ToolKind(name="noop", fields=_split_names("result"), is_available=True)

DUCKDB = ToolKind(
    name="duckdb",
    fields=_split_names("query query_b64 database inputs params") | _SCRIPT,
    aliases=_DUCKDB_ALIASES,
    source=("query", "query_b64", "script"),
    is_available=True,
)
ARTIFACT = ToolKind(
    name="artifact",
    fields=_split_names("action result_ref uri data compress format"),
    required=("action",),
    is_available=True,
)
TRANSFER = ToolKind(
    name="transfer",
    fields=_split_names("source target mapping mode chunk_size key engine"),
    required=("source", "target"),
    is_available=True,
)

_OTHERS = (
    ToolKind(
        name="shell",
        fields=_split_names("cmds env cwd shell stdin") | _SCRIPT,
        aliases=dict.fromkeys(("commands", "command", "cmd"), "cmds"),
        source=("cmds", "script"),
        is_available=True,
    ),
    ToolKind(
        name="spark",
        fields=_split_names(
            "sql code inputs params requirements session explain mode follow event_log"
        )
        | _SCRIPT,
        aliases={"query": "sql"},
        source=("sql", "code", "script"),
        is_available=True,
    ),
    ToolKind(
        name="playbook",
        fields=_split_names("path version payload workload return_step wait"),
        required=("path",),
        is_available=True,
    ),
    # Expanded when the document is read: the canonical model holds the entry's own kind.
    ToolKind(name="workbook", fields=_split_names("task"), is_available=True),
    ToolKind(
        name="nats",
        fields=_split_names(
            "operation bucket key value ttl subject payload headers stream seq name data"
        ),
        required=("operation",),
        is_available=True,
    ),
    # What `noetl credential test` runs.
    ToolKind(name="credential_test", fields=_split_names("url"), is_available=True),
    ToolKind(
        name="container",
        fields=_split_names(
            "image command args env files namespace service_account resources backoff_limit"
            " restart_policy ttl_seconds_after_finished runtime job network"
        )
        | _SCRIPT,
        is_available=True,
    ),
    ToolKind(
        name="external",
        fields=_split_names(
            "mode submit correlation_key on_timeout cancel schema title description"
            " assignees options four_eyes"
        ),
        is_available=True,
    ),
)

KINDS: dict[str, ToolKind] = {
    kind.name: kind for kind in (HTTP, POSTGRES, PYTHON, NOOP, DUCKDB, ARTIFACT, TRANSFER, *_OTHERS)
}
# Kinds of which an input with the name of a field that is not written fills it.
FILLED_BY_INPUT = frozenset({"artifact", "nats", "transfer", "container", "external"})
# What stands under `spec` of a task; fields of a kind once did too.
SPEC_KEYS = frozenset({"timeout", "policy", "rate_limit"})
# Fields of a kind that stand under `spec`.
SPEC_FIELDS = frozenset({"network"})
# The tasks inside an `external` one, and what they may be.
NESTED_FIELDS = ("submit", "cancel")
NESTED_KINDS = ("http", "shell", "python", "nats", "noop")
KIND_ALIASES = {"script": "container", "sql": "postgres", "result": "artifact"}
RESERVED_KINDS = _split_names(
    "mcp agent snowflake ducklake gcs secrets subscription gateway playbooks iterator"
    " quantum rhai task_sequence result_fetch cursor_worker"
)

# Fields that say "this mapping is a task" wherever they stand; a step has a description too.
TASK_FIELDS = (
    frozenset[str]().union(*(kind.known_fields for kind in KINDS.values())) | {"auth"}
) - {"description"}


def is_kind_available(kind: str) -> bool:
    """Tell whether this release runs tasks of a kind."""
    tool_kind = KINDS.get(kind)
    return tool_kind is not None and tool_kind.is_available
