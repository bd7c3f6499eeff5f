"""Commands of a tenant with a share of its own are sent to its own queues."""

from tests.support.planning import Desk

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
    desk = Desk(PLAYBOOK)
    desk.start()
    for has_share in (True, False):
        (message,) = message_publisher.build_messages(
            [],
            desk.sent(),
            routes=IngestRoutes(shard_count=1, tenants=frozenset({"default"} if has_share else ())),
        )
        told = subjects.parse_command_subject(message.subject)
        assert (told.tenant_id, told.lane, told.is_own) == ("default", "io", has_share)
