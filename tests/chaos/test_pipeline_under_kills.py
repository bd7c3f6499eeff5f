"""A pipeline of ten steps, on Spark and beside it, ends as in peace where its parts are killed."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.proof import pipeline as proof
from tests.support.servers import S3Server, s3_server
from tests.support.stack import Stack, running_stack
from tests.support.ten_steps.contents import Pipeline, keep_credentials
from tests.support.ten_steps.kills import Attacker, Victim

pytestmark = pytest.mark.timeout(1800)

ROWS = 2_000
# Of a calm step. In a warm session a step may end in a fourth of that, and each kill has to hit.
EARLY = 0.1
# A killed worker's work is handed out again when its lease is over.
OPTIONS = (
    *proof.OPTIONS,
    *(f"--set={name}_LEASE_S=10" for name in ("MESSAGING", "WORKER", "PLANNER_COMMAND")),
    *("--set", "PLANNER_COMMAND_HEARTBEAT_S=2"),
)
# Steps that take seconds, so that a kill meets each while it runs.
PLAN = [
    ("joined", Victim.DRIVER),
    ("scored", Victim.WORKER),
    ("published", Victim.STACK),
]


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3Server]:
    with s3_server(tmp_path) as running:
        yield running


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    with running_stack(tmp_path / "stack", *OPTIONS) as running:
        yield running


def test_killed_parts_of_a_pipeline_lose_and_double_nothing(stack: Stack, s3: S3Server) -> None:
    keep_credentials(stack, s3)
    calm = Pipeline(stack, s3, "calm", rows=ROWS)
    usual, _ = proof.run_in_peace(calm, (1,))
    killed = Pipeline(stack, s3, "killed", rows=ROWS)
    attacker = Attacker(stack, options=OPTIONS, seed=proof.SEED, share_max=EARLY)
    made = proof.run_under_kills(killed, PLAN, usual, attacker)
    assert [kill.step for kill in made] == [step for step, _ in PLAN]
    assert all(kill.has_hit for kill in made), made
    wanted = calm.read_all()
    assert all(len(rows) for rows in wanted.values()), "the calm run has filled each table"
    proof.assert_equal(killed, wanted)
