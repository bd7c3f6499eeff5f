"""The form of a problem code: its meaning, its severity by level, and the way out."""

from enum import StrEnum

import msgspec


class CodeWeight(StrEnum):
    """How a code weighs at the two levels."""

    ERROR = "error"
    STRICT_ERROR = "strict_error"
    WARNING = "warning"
    STRICT_WARNING = "strict_warning"


class ProblemCode(msgspec.Struct, frozen=True, kw_only=True):
    """One check, as lint explains it; `wrong` and `right` are fragments of a playbook."""

    code: str
    weight: CodeWeight
    title: str
    advice: str
    wrong: str
    right: str


LOOPS = (
    ProblemCode(
        code="E501",
        weight=CodeWeight.ERROR,
        title="A loop is incomplete or contradicts itself",
        advice="A loop has an iterator and either in or cursor; mode cursor goes with cursor; a"
        " cursor has a claim; a step has either loop or reduce.",
        wrong="loop: {iterator: row}",
        right='loop: {in: "{{ workload.rows }}", iterator: row}',
    ),
    ProblemCode(
        code="E502",
        weight=CodeWeight.STRICT_ERROR,
        title="A number of a loop, frame, fan-out or reduce is out of range or has no effect",
        advice="The number is clamped at run time. A heartbeat is at most half of its lease."
        " frame and chunk_size cut the items of mode chunked, fanout those of mode "
        "fanout.",
        wrong="frame: {lease_seconds: 30, heartbeat_seconds: 20}",
        right="frame: {lease_seconds: 30, heartbeat_seconds: 10}",
    ),
    ProblemCode(
        code="E503",
        weight=CodeWeight.STRICT_ERROR,
        title="A claim returns no rows",
        advice="End the claim with RETURNING, or select the rows that it took.",
        wrong="claim: UPDATE jobs SET state = 'taken'",
        right="claim: UPDATE jobs SET state = 'taken' RETURNING id",
    ),
    ProblemCode(
        code="E504",
        weight=CodeWeight.STRICT_ERROR,
        title="A task that waits stands where none can",
        advice="A wait for a child playbook, a message, a person or a long delay frees the "
        "worker. A frame with transaction: true, and a loop with exec: local, cannot:"
        " the task fails with unsupported_tool, a delay of more than 60 s with limit.",
        wrong="loop: {spec: {policy: {exec: local}}, …}\n  tool: {kind: playbook, path: child}",
        right="loop: {spec: {mode: parallel}, …}\n  tool: {kind: playbook, path: child}",
    ),
)


def _define_code(
    code: str, weight: CodeWeight, title: str, *, advice: str, wrong: str, right: str
) -> ProblemCode:
    return ProblemCode(
        code=code, weight=weight, title=title, advice=advice, wrong=wrong, right=right
    )


_DOCUMENT = (
    _define_code(
        "E101",
        CodeWeight.ERROR,
        "The text is not a YAML document that is accepted",
        advice="The text must be UTF-8 YAML with one mapping and unique keys. Tags of "
        "programs, directives, control characters and tabs as indentation are "
        "refused.",
        wrong="metadata: {name: a, name: b}",
        right="metadata: {name: a}",
    ),
    _define_code(
        "E102",
        CodeWeight.ERROR,
        "The document is not a playbook",
        advice="A playbook needs kind: Playbook, metadata.name, a known apiVersion and at least"
        " one step.",
        wrong="kind: Workflow",
        right="kind: Playbook",
    ),
    _define_code(
        "E103",
        CodeWeight.ERROR,
        "Unknown key",
        advice="Nothing reads the key. Correct its spelling, or remove it. In the older "
        "dialect it is a warning, unless one edit makes it a known key.",
        wrong="tool: {kind: http, url: u, methd: POST}",
        right="tool: {kind: http, url: u, method: POST}",
    ),
    _define_code(
        "E104",
        CodeWeight.ERROR,
        "Wrong type or value, or a required field is missing",
        advice="The message names what is expected at this place.",
        wrong="next: {spec: {mode: exclusiv}}",
        right="next: {spec: {mode: exclusive}}",
    ),
    _define_code(
        "E105",
        CodeWeight.ERROR,
        "A task's field stands beside the tool",
        advice="Fields of a task belong into the mapping with its kind.",
        wrong="- {step: s, url: u, tool: {kind: http}}",
        right="- {step: s, tool: {kind: http, url: u}}",
    ),
    _define_code(
        "E106",
        CodeWeight.STRICT_ERROR,
        "A step does nothing",
        advice="A step that only routes says so with kind: noop.",
        wrong="- {step: s}",
        right="- {step: s, tool: {kind: noop}}",
    ),
)
_NAMES = (
    _define_code(
        "E201",
        CodeWeight.ERROR,
        "A name is taken, or is not a name",
        advice="Step names are unique in the workflow, task names in their step. Tasks, iterators"
        " and variables are identifiers.",
        wrong="loop: {in: [1], iterator: the row}",
        right="loop: {in: [1], iterator: the_row}",
    ),
    _define_code(
        "E202",
        CodeWeight.ERROR,
        "A reference names nothing",
        advice="entry_step and final_step name steps, a workbook task a workbook entry, "
        "reduce.from loop steps, the uri of a script a file beside or below the "
        "playbook.",
        wrong="executor: {spec: {entry_step: strat}}",
        right="executor: {spec: {entry_step: start}}",
    ),
    _define_code(
        "E203",
        CodeWeight.ERROR,
        "An arc leads to no step",
        advice="The target of an arc is the name of a step of the same workflow.",
        wrong="next: {arcs: [{step: finsh}]}",
        right="next: {arcs: [{step: finish}]}",
    ),
    _define_code(
        "E204",
        CodeWeight.ERROR,
        "A jump leads to no task",
        advice="A jump names a task of the same step; the first task has no previous one.",
        wrong="{else: {then: {do: jump, to: fetsh}}}",
        right="{else: {then: {do: jump, to: fetch}}}",
    ),
    _define_code(
        "E205",
        CodeWeight.WARNING,
        "A step cannot be reached",
        advice="No arc leads here from the entry step. Add an arc, or remove the step.",
        wrong="workflow: [{step: a, next: {arcs: [{step: a}]}}, {step: b}]",
        right="workflow: [{step: a, next: {arcs: [{step: b}]}}, {step: b}]",
    ),
    _define_code(
        "E206",
        CodeWeight.ERROR,
        "The target of a stream does more than handle one chunk",
        advice="The target of on: call.partial has no next, loop or stream, and no other "
        "arcs lead to it.",
        wrong="- {step: ship, tool: {kind: noop}, next: {arcs: [{step: done}]}}",
        right="- {step: ship, tool: {kind: noop}}",
    ),
    _define_code(
        "E207",
        CodeWeight.STRICT_ERROR,
        "An arc waits for an event that never comes",
        advice="A plain or reduce step ends with call.done or call.error, a loop with "
        "loop.done or loop.failed; call.partial comes from a task with stream alone.",
        wrong="- {step: a, tool: {kind: noop}, next: {arcs: [{step: b, on: loop.done}]}}",
        right="- {step: a, tool: {kind: noop}, next: {arcs: [{step: b, on: call.done}]}}",
    ),
    _define_code(
        "E208",
        CodeWeight.STRICT_ERROR,
        "A keychain entry cannot be resolved",
        advice="Its kind is unknown, or lacks a field that the kind needs. A task that uses it"
        " fails with a config error.",
        wrong="keychain: [{name: api, kind: bearer}]",
        right='keychain: [{name: api, kind: bearer, token: "{{ workload.token }}"}]',
    ),
)
_TEMPLATES = (
    _define_code(
        "E301",
        CodeWeight.ERROR,
        "A template cannot be read",
        advice="Braces, quotes and parentheses must be closed. include, import, extends, macro and"
        " call are not available.",
        wrong='url: "{{ workload.api"',
        right='url: "{{ workload.api }}"',
    ),
    _define_code(
        "E302",
        CodeWeight.ERROR,
        "Unknown filter or test",
        advice="Correct the spelling. The page of the vocabulary lists the filters.",
        wrong='url: "{{ workload.api | uper }}"',
        right='url: "{{ workload.api | upper }}"',
    ),
    _define_code(
        "E303",
        CodeWeight.ERROR,
        "A name can never have a value",
        advice="No step, task, workload key, variable or fixed name is called so. Declare a "
        "key that only a request gives in workload, with null or a default. Without "
        "that workload.key is a warning, and an error if it looks mistyped. With "
        "executor.spec.undefined: lenient, and in the older dialect, all are "
        "warnings.",
        wrong='url: "{{ wokload.api }}"',
        right='url: "{{ workload.api }}"',
    ),
    _define_code(
        "E304",
        CodeWeight.STRICT_ERROR,
        "A name is used outside its scope",
        advice="Item names live in the loop's body, fanin and event in arcs, chunk in the "
        "targets of streams.",
        wrong='tool: {kind: noop, result: "{{ fanin.total }}"}',
        right='set: {ctx.total: "{{ fanin.total }}"}',
    ),
)
_TOOLS = (
    _define_code(
        "E401",
        CodeWeight.ERROR,
        "Unknown tool kind",
        advice="Correct the spelling. The page of tool kinds lists them.",
        wrong="tool: {kind: htp, url: u}",
        right="tool: {kind: http, url: u}",
    ),
    _define_code(
        "E402",
        CodeWeight.STRICT_ERROR,
        "Reserved tool kind",
        advice="The kind is a reserved word and runs nothing. Call the system with kind http,"
        " python or external.",
        wrong="tool: {kind: agent}",
        right="tool: {kind: http, url: u}",
    ),
    _define_code(
        "E403",
        CodeWeight.ERROR,
        "The fields of a task do not fit together",
        advice="The kind lacks a field that it needs, or has two fields that exclude each other.",
        wrong="tool: {kind: python, code: a, code_b64: b}",
        right="tool: {kind: python, code: a}",
    ),
    _define_code(
        "E404",
        CodeWeight.STRICT_ERROR,
        "A secret is written into the playbook",
        advice="Everyone who reads the playbook sees it. Name a stored credential, or take "
        "the value from the keychain.",
        wrong="auth: {type: bearer, token: s3cret}",
        right='auth: {type: bearer, token: "{{ keychain.shop.token }}"}',
    ),
)
_LIMITS = (
    _define_code(
        "E601",
        CodeWeight.ERROR,
        "Too many steps, tasks or arcs",
        advice="A workflow has at most 20,000 steps, a step 200 tasks and 200 arcs. Move a part"
        " into a playbook of its own.",
        wrong="workflow: [… 20,001 steps …]",
        right="tool: {kind: playbook, path: second/part}",
    ),
    _define_code(
        "E602",
        CodeWeight.ERROR,
        "A template is too long",
        advice="The source of a template has at most 1,048,576 characters.",
        wrong='code: "{{ … }} and a megabyte of text"',
        right="script: {uri: long.py}",
    ),
    _define_code(
        "E603",
        CodeWeight.ERROR,
        "A number of attempts or a wait is out of bounds",
        advice="attempts is between 1 and 1,000; delay and max_delay are between 0 and 31,622,400 s"
        " (a year).",
        wrong="{do: retry, attempts: 5000}",
        right="{do: retry, attempts: 50, delay: 60}",
    ),
    _define_code(
        "E604",
        CodeWeight.ERROR,
        "max_in_flight is out of bounds",
        advice="max_in_flight is between 1 and 10,000.",
        wrong="spec: {mode: parallel, max_in_flight: 20000}",
        right="spec: {mode: parallel, max_in_flight: 200}",
    ),
    _define_code(
        "E605",
        CodeWeight.ERROR,
        "The document is too large",
        advice="A document has at most 2 MiB, is nested at most 64 deep, and expands to at most"
        " 500,000 values. Keep bulk data in a table or a file.",
        wrong="workload: {rows: [… megabytes …]}",
        right="loop: {cursor: {kind: postgres, auth: db, claim: …}, iterator: row}",
    ),
    _define_code(
        "E606",
        CodeWeight.ERROR,
        "A loop or fan-out has too many units",
        advice="A literal list has at most 100,000 items, a fan-out at most 10,000 shards.",
        wrong="fanout: {partitions: 20000}",
        right="fanout: {partitions: 200}",
    ),
    _define_code(
        "E607",
        CodeWeight.ERROR,
        "A limit of the playbook is above its maximum",
        advice="executor.spec.policy.limits may lower limits; only the deployment may raise them.",
        wrong="limits: {max_steps: 1000000}",
        right="limits: {max_steps: 1000}",
    ),
    _define_code(
        "E608",
        CodeWeight.ERROR,
        "The default inputs are too large",
        advice="workload has at most 4 MiB once its aliases are expanded.",
        wrong="workload: {a: *large, b: *large}",
        right="workload: {table: main.rows}",
    ),
    _define_code(
        "E609",
        CodeWeight.ERROR,
        "A chunk of a stream is out of bounds",
        advice="chunk_rows and max_ahead are at least 1; chunk_bytes is between 1 and 16 MiB.",
        wrong="stream: {chunk_bytes: 64MiB}",
        right="stream: {chunk_bytes: 4MiB}",
    ),
)
_OLDER = (
    _define_code(
        "W901",
        CodeWeight.STRICT_ERROR,
        "Older form of a root section",
        advice="Write apiVersion: noetl.io/v2; values of a root vars belong into workload or set.",
        wrong="vars: {total: 0}",
        right="workload: {total: 0}",
    ),
    _define_code(
        "W902",
        CodeWeight.STRICT_ERROR,
        "Older form of a step or a task",
        advice="The problem carries the canonical form as its replacement.",
        wrong="- {step: s, tool: {kind: noop, args: {a: 1}}}",
        right="- {step: s, tool: {kind: noop, input: {a: 1}}}",
    ),
    _define_code(
        "W903",
        CodeWeight.STRICT_ERROR,
        "Older form of routing",
        advice="The problem carries the canonical form as its replacement.",
        wrong='next: [{when: "{{ n > 3 }}", then: [a]}, {else: [b]}]',
        right='next: [{step: a, when: "{{ n > 3 }}"}, {step: b}]',
    ),
    _define_code(
        "W904",
        CodeWeight.STRICT_ERROR,
        "Database settings on a task",
        advice="Store the settings as a credential and name it: they do not belong into a"
        " playbook.",
        wrong="tool: {kind: postgres, db_host: h, db_password: p, query: SELECT 1}",
        right="tool: {kind: postgres, auth: main_db, query: SELECT 1}",
    ),
)
_HABITS = (
    _define_code(
        "W905",
        CodeWeight.WARNING,
        "A condition without delimiters",
        advice="Write the braces, so that a reader sees a template.",
        wrong="when: n > 3",
        right='when: "{{ n > 3 }}"',
    ),
    _define_code(
        "W906",
        CodeWeight.WARNING,
        "A word that some read as a boolean",
        advice="yes, no, on, off, y and n are text. Quote them, or write true or false.",
        wrong="result: yes",
        right="result: true",
    ),
    _define_code(
        "W907",
        CodeWeight.WARNING,
        "A parallel body may lose updates",
        advice="Bodies that run at once read and write the same key, and the last write "
        "wins. Use results, accumulate or reduce.",
        wrong='set: {ctx.n: "{{ ctx.n + 1 }}"}',
        right="output: {accumulate: {strategy: append}}",
    ),
    _define_code(
        "W908",
        CodeWeight.WARNING,
        "A fixed name hides this name",
        advice="The bare name always means the fixed one. Choose another, or use the long form"
        " that the hint gives.",
        wrong="workload: {event: launch}",
        right="workload: {occasion: launch}",
    ),
    _define_code(
        "W909",
        CodeWeight.STRICT_WARNING,
        "A template inside SQL text",
        advice="A value with a quote in it changes the statement. Bind it with params, or end the"
        " expression with int, float, to_number, sql_literal or sql_ident.",
        wrong="query: SELECT * FROM t WHERE name = '{{ ctx.name }}'",
        right='query: SELECT * FROM t WHERE name = $1\n  params: ["{{ ctx.name }}"]',
    ),
    _define_code(
        "W910",
        CodeWeight.WARNING,
        "There are more problems than are listed",
        advice="At most 1,000 errors and 1,000 warnings are listed. Correct those and look again.",
        wrong="a document with 1,001 unknown keys",
        right="a document with none",
    ),
    _define_code(
        "W911",
        CodeWeight.WARNING,
        "A reduce does not begin early",
        advice="In this release reduce.spec.start: eager does what after_fanin does: no "
        "group runs before the source has ended. The result is the same.",
        wrong="reduce: {from: score, spec: {mode: tree, start: eager}}",
        right="reduce: {from: score, spec: {mode: tree}}",
    ),
    _define_code(
        "W912",
        CodeWeight.WARNING,
        "Rows of an increment are appended",
        advice="Rows at the boundary, and within the lag, are read again by the next run: an append"
        " doubles them.",
        wrong="tool: {kind: transfer, source: s, target: t, mode: append}",
        right="tool: {kind: transfer, source: s, target: t, mode: upsert, key: id}",
    ),
    _define_code(
        "W913",
        CodeWeight.WARNING,
        "A deadline never passes",
        advice="The timeout comes first.",
        wrong="spec: {deadline: 2h, timeout: 1h}",
        right="spec: {deadline: 1h, timeout: 2h}",
    ),
)

CODES: dict[str, ProblemCode] = {
    item.code: item
    for group in (_DOCUMENT, _NAMES, _TEMPLATES, _TOOLS, LOOPS, _LIMITS, _OLDER, _HABITS)
    for item in group
}
