"""What is asked for during a storm, beside PFT: playbooks whose result is known."""

from msgspec import Struct

SMALL_ITEMS = 40
SPARK_ITEMS = 320


class Job(Struct, frozen=True, kw_only=True):
    """A playbook, and what one of its steps must come to."""

    name: str
    step: str
    result: int
    playbook: str


# A storm must not use up the attempts of a unit: it loses more of them than bad luck would.
SMALL = Job(
    name="stormy",
    step="sum",
    result=sum(range(SMALL_ITEMS)),
    playbook=f"""
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: stormy}}
workload: {{n: {SMALL_ITEMS}}}
workflow:
  - step: each
    loop:
      in: "{{{{ workload.n }}}}"
      iterator: i
      spec: {{mode: parallel, max_in_flight: 8, max_attempts: 1000}}
    tool: {{kind: noop, result: "{{{{ iter.i }}}}"}}
    next: {{arcs: [{{step: sum}}]}}
  - step: sum
    tool: {{kind: python, input: {{given: "{{{{ each.results }}}}"}}, code: "return sum(given)"}}
""",
)
SPARK = Job(
    name="stormy_spark",
    step="total",
    result=sum((number + 1) ** 3 % 1_000_003 for number in range(SPARK_ITEMS)),
    playbook=f"""
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: stormy_spark}}
workflow:
  - step: spread
    loop:
      in: "{{{{ range({SPARK_ITEMS}) | list }}}}"
      iterator: n
      spec:
        mode: fanout
        max_in_flight: 16
        fanout: {{partitions: 16, max_shard_retries: 100}}
        frame: {{process: frame, engine: spark, max_attempts: 1000}}
    tool:
      kind: python
      input: {{rows: "{{{{ iter.n }}}}"}}
      code: "return sum((n + 1) ** 3 % 1000003 for n in rows)"
    next: {{arcs: [{{step: total}}]}}
  - step: total
    reduce:
      from: spread
      iterator: parts
      spec: {{mode: single, frame: {{engine: spark, max_attempts: 1000}}}}
    tool: {{kind: noop, result: "{{{{ iter.parts | map(attribute='data') | flatten | sum }}}}"}}
""",
)
