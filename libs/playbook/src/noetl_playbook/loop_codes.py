"""The codes of loops, frames and reduces, a part of the table in `code_table`."""

from noetl_playbook.codes import Code, Weight

LOOPS = (
    Code(
        code="E501",
        weight=Weight.ERROR,
        title="A loop is incomplete or contradicts itself",
        advice="A loop has an iterator and either in or cursor; mode cursor goes with cursor; a"
        " cursor has a claim; a step has either loop or reduce.",
        wrong="loop: {iterator: row}",
        right='loop: {in: "{{ workload.rows }}", iterator: row}',
    ),
    Code(
        code="E502",
        weight=Weight.STRICT_ERROR,
        title="A number of a loop, frame, fan-out or reduce is out of range or has no effect",
        advice="The number is clamped when the playbook runs. A heartbeat is at most half of its"
        " lease. frame and chunk_size cut the items of mode chunked, fanout those of mode fanout.",
        wrong="frame: {lease_seconds: 30, heartbeat_seconds: 20}",
        right="frame: {lease_seconds: 30, heartbeat_seconds: 10}",
    ),
    Code(
        code="E503",
        weight=Weight.STRICT_ERROR,
        title="A claim returns no rows",
        advice="The claim must return the rows that it took: end it with RETURNING, or select"
        " them.",
        wrong="claim: UPDATE jobs SET state = 'taken'",
        right="claim: UPDATE jobs SET state = 'taken' RETURNING id",
    ),
    Code(
        code="E504",
        weight=Weight.STRICT_ERROR,
        title="A task that waits stands where none can",
        advice="A child playbook, a message, a person or a long delay is waited for without a"
        " worker. A frame with transaction: true, and a loop with exec: local, keep theirs: the"
        " task fails with unsupported_tool, a delay of more than 60 s with limit.",
        wrong="loop: {spec: {policy: {exec: local}}, …}\n  tool: {kind: playbook, path: child}",
        right="loop: {spec: {mode: parallel}, …}\n  tool: {kind: playbook, path: child}",
    ),
)
