"""What a soak asks for: small playbooks of every common shape, each with the end it must come to."""

from typing import Any

from msgspec import Struct
from tests.bench.client import HEAD

CREDENTIAL = "pg_soak"
TABLE = (
    "CREATE TABLE IF NOT EXISTS soak_jobs"
    " (id bigserial PRIMARY KEY, run text NOT NULL, n int NOT NULL, state text NOT NULL DEFAULT 'new')"
)
INDEX = "CREATE INDEX IF NOT EXISTS soak_jobs_run ON soak_jobs (run, state, id)"
CANCELLED, FAILED, COMPLETED = "CANCELLED", "FAILED", "COMPLETED"


class Kind(Struct, frozen=True, kw_only=True):
    """A playbook and its end: the status, and the variables where it completes.

    `meanwhile` is what somebody outside does to it while it waits: `cancel` or `signal`.
    `executions` counts those that one request leads to, children with it.
    """

    name: str
    playbook: str
    ends: str = COMPLETED
    variables: dict[str, Any] = {}
    error: str | None = None
    meanwhile: str | None = None
    executions: int = 1

    @property
    def path(self) -> str:
        """What it is registered as."""
        return f"soak/{self.name}"


def _kind(name: str, workflow: str, **how: Any) -> Kind:
    head = f"{HEAD}metadata: {{name: {name}, path: soak/{name}}}\nworkload: {{n: 4, site: ''}}\n"
    return Kind(name=name, playbook=f"{head}workflow:\n{workflow}", **how)


STEPS = _kind(
    "steps",
    """\
  - step: one
    tool: {kind: python, input: {n: "{{ workload.n }}"}, code: "return n + 1"}
    set: {ctx.first: "{{ one }}"}
    next: {arcs: [{step: two}]}
  - step: two
    tool: {kind: python, input: {n: "{{ ctx.first }}"}, code: "return n * 2"}
    set: {ctx.second: "{{ two }}"}
    next: {arcs: [{step: three, when: "{{ ctx.second == 10 }}"}]}
  - step: three
    tool: {kind: noop, result: "{{ ctx.second + 1 }}"}
    set: {ctx.third: "{{ three }}"}
""",
    variables={"first": 5, "second": 10, "third": 11},
)
LOOP = _kind(
    "loop",
    """\
  - step: each
    loop: {in: 12, iterator: i, spec: {mode: parallel, max_in_flight: 4}}
    tool: {kind: noop, result: "{{ iter.i * 2 }}"}
    next: {arcs: [{step: total}]}
  - step: total
    tool: {kind: noop, result: "{{ each.results | sum }}"}
    set: {ctx.total: "{{ total }}"}
""",
    variables={"total": 132},
)
FRAMES = _kind(
    "frames",
    """\
  - step: each
    loop:
      in: 60
      iterator: part
      spec: {mode: chunked, chunk_size: 15, max_in_flight: 2, frame: {process: frame}}
    tool: {kind: python, input: {part: "{{ iter.part }}"}, code: "return sum(part)"}
    set: {ctx.total: "{{ each.results | sum }}"}
""",
    variables={"total": sum(range(60))},
)
CURSOR = _kind(
    "cursor",
    """\
  - step: fill
    tool:
      kind: postgres
      auth: pg_soak
      query: "INSERT INTO soak_jobs (run, n) SELECT $1, n FROM generate_series(1, 10) AS n"
      params: ["{{ execution_id }}"]
    next: {arcs: [{step: drain}]}
  - step: drain
    loop:
      cursor:
        kind: postgres
        auth: pg_soak
        claim: |
          WITH pick AS (SELECT id FROM soak_jobs WHERE run = '{{ execution_id }}' AND state = 'new'
                        ORDER BY id FOR UPDATE SKIP LOCKED LIMIT {{ __frame_max_rows | int }})
          UPDATE soak_jobs j SET state = 'taken' FROM pick WHERE j.id = pick.id RETURNING j.id, j.n
      iterator: row
      spec: {mode: cursor, max_in_flight: 2, frame: {max_rows: 5}}
    tool:
      kind: postgres
      auth: pg_soak
      query: "UPDATE soak_jobs SET state = 'done' WHERE id = $1"
      params: ["{{ iter.row.id }}"]
    next: {arcs: [{step: clear, on: loop.done}]}
  - step: clear
    tool:
      kind: postgres
      auth: pg_soak
      query: |
        WITH gone AS (DELETE FROM soak_jobs WHERE run = $1 AND state = 'done' RETURNING n)
        SELECT count(*)::int AS n, sum(n)::int AS total FROM gone
      params: ["{{ execution_id }}"]
    set: {ctx.done: "{{ clear.rows[0].n }}", ctx.total: "{{ clear.rows[0].total }}"}
""",
    variables={"done": 10, "total": 55},
)
CHILD = _kind(
    "child",
    """\
  - step: ask
    tool: {kind: playbook, path: soak/steps, return_step: three, timeout: 600}
    set: {ctx.status: "{{ ask.status }}"}
""",
    executions=2,
)
FETCH = _kind(
    "fetch",
    """\
  - step: each
    loop: {in: 10, iterator: i, spec: {mode: parallel, max_in_flight: 5}}
    tool: {kind: http, url: "{{ workload.site }}/item/{{ iter.i }}", response_type: json}
    next: {arcs: [{step: total}]}
  - step: total
    tool: {kind: noop, result: "{{ each.results | map(attribute='body.item') | sum }}"}
    set: {ctx.total: "{{ total }}"}
""",
    variables={"total": 45},
)
STORED = _kind(
    "stored",
    """\
  - step: make
    tool:
      kind: python
      input: {n: "{{ execution_id }}"}
      code: "return [{'id': i, 'run': n, 'text': 'x' * 100} for i in range(1500)]"
    next: {arcs: [{step: count}]}
  - step: count
    tool: {kind: python, input: {rows: "{{ make }}"}, code: "return sum(row['id'] for row in rows)"}
    set: {ctx.total: "{{ count }}"}
""",
    variables={"total": sum(range(1500))},
)
SIGNAL = _kind(
    "signal",
    """\
  - step: wait
    tool:
      kind: external
      mode: signal
      correlation_key: "soak-{{ execution_id }}"
      schema: {paid: number}
      timeout: 1h
    set: {ctx.paid: "{{ wait.paid }}"}
""",
    variables={"paid": 12.5},
    meanwhile="signal",
)
CANCEL = _kind(
    "cancel",
    """\
  - step: begin
    tool: {kind: noop}
    set: {ctx.began: true}
    next: {arcs: [{step: slow}]}
  - step: slow
    tool: {kind: python, code: "await asyncio.sleep(600)"}
""",
    ends=CANCELLED,
    meanwhile="cancel",
)
WRONG = _kind(
    "wrong",
    """\
  - step: look
    tool: {kind: noop, result: "{{ workload.site.nothing }}"}
""",
    ends=FAILED,
    error="template",
)
KINDS = (STEPS, LOOP, FETCH, CURSOR, CHILD, FRAMES, SIGNAL, STORED, CANCEL, WRONG)
