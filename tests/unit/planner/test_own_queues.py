"""Commands of a tenant with a share of its own are sent to its own queues."""

from tests.support.planning import PlannerHarness

from noetl_contracts import subjects
from noetl_contracts.ingest_routes import IngestRoutes
from noetl_planner.shards import message_publisher

PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
workflow: [{step: one, tool: {kind: noop}}]
"""


def test_only_a_tenant_with_a_share_has_its_own_queue() -> None:
    harness = PlannerHarness(PLAYBOOK)
    harness.start()
    for has_share in (True, False):
        (message,) = message_publisher.build_messages(
            [],
            harness.sent(),
            routes=IngestRoutes(shard_count=1, tenants=frozenset({"default"} if has_share else ())),
        )
        command_subject = subjects.parse_command_subject(message.subject)
        assert (command_subject.tenant_id, command_subject.lane, command_subject.is_own) == (
            "default",
            "io",
            has_share,
        )
