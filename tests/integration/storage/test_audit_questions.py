"""The questions of the audit's page, asked of a ledger that has answers."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec import structs
from tests.support.builders import STORIES, TENANT, History
from tests.support.storage import (
    Stores,
    a_fence,
    an_append,
    make_reader,
    migrated,
    postgres_stores,
)

from noetl_contracts import codec
from noetl_contracts.identity import actors
from noetl_contracts.identity.actors import Actor, ActorKind, Via
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger import envelope
from noetl_storage.postgres.database import Database

PAGE = Path(__file__).parents[3] / "docs" / "operations" / "audit.md"
QUESTIONS = re.findall(r"\n([^\n]+\?)\n\n```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
ADA = Actor(kind=ActorKind.PERSON, id="ada", name="Ada", via=Via.CLI)
# A story that answers each question, in the order of the page.
ANSWERED_BY = ("single-step", "shop", "lost-worker", "cursor-loop", "held-run")


@pytest.fixture
async def opened(database: str) -> AsyncIterator[Database]:
    async with migrated(database) as pool:
        yield pool


def test_there_are_five_questions() -> None:
    assert len(QUESTIONS) == len(ANSWERED_BY) == 5


async def test_every_question_has_an_answer_for_its_tenant_alone(
    opened: Database, database: str
) -> None:
    stores: Stores = postgres_stores(opened)
    fence = await a_fence(stores)
    readers = {tenant: await make_reader(database, tenant) for tenant in (TENANT, "other")}
    for place, ((question, query), name) in enumerate(zip(QUESTIONS, ANSWERED_BY, strict=True)):
        told = STORIES[name]()
        history = History(ExecutionId(str(int(told.execution_id) + (place << 22))))
        history.add(told.envelopes[0].event)
        asked = structs.replace(history.envelopes[0], meta=actors.build_actor_meta(ADA))
        history.envelopes[0] = envelope.seal_envelope(asked, "")
        history.add(*(item.event for item in told.envelopes[1:]))
        await stores.ledger.append(an_append(fence, history.stream()))
        for tenant, is_answered in ((TENANT, True), ("other", False)):
            async with opened.open_transaction() as transaction:
                await transaction.execute_statement(f"set local role {readers[tenant]}")
                rows = await transaction.fetch_rows(query, int(history.execution_id))
            if place == 0 and is_answered:
                assert [dict(row)["asked_by"] for row in rows] == [codec.to_builtins(ADA)]
            assert bool(rows) is is_answered, question
