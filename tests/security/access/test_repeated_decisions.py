"""An approval is decided once, by whom it may be, and not after its execution was cancelled."""

import asyncio
from http import HTTPStatus
from pathlib import Path

from tests.support.guarded_shop import open_shop
from tests.support.polling import eventually

GATE = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: gate, path: demo/gate}
workflow:
  - step: ask
    tool: {kind: external, mode: approval, title: Go?, timeout: 60}
"""
APPROVE, REJECT = {"decision": "approve"}, {"decision": "reject"}


async def test_a_second_decision_changes_nothing(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        ada, bob = await shop.person("author", "ada"), await shop.person("operator", "bob")
        eve = await shop.person("operator", "eve")
        await shop.register(ada, GATE)
        execution_id = await shop.run(ada, "demo/gate")
        address = await shop.wait_for_approval(bob, execution_id)
        first = await shop.ask(bob, "POST", address, json=APPROVE)
        other = await shop.ask(eve, "POST", address, json=REJECT)
        again = await shop.ask(eve, "POST", address, json=APPROVE)
        assert first.status_code == HTTPStatus.ACCEPTED, first.text
        assert (other.status_code, again.status_code) == (HTTPStatus.CONFLICT, HTTPStatus.CONFLICT)
        assert "by bob" in other.json()["detail"]
        assert await shop.wait_for_end(execution_id) == "COMPLETED"
        result = await shop.ask(ada, "GET", f"/api/result/{execution_id}/ask")
        assert (result.json()["data"]["decision"], result.json()["data"]["by"]) == (
            "approve",
            "bob",
        )


async def test_of_decisions_at_once_one_counts(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        ada = await shop.person("author", "ada")
        people = [await shop.person("operator", f"person-{number}") for number in range(6)]
        await shop.register(ada, GATE)
        execution_id = await shop.run(ada, "demo/gate")
        address = await shop.wait_for_approval(people[0], execution_id)
        answers = await asyncio.gather(
            *(
                shop.ask(person, "POST", address, json=(APPROVE, REJECT)[number % 2])
                for number, person in enumerate(people)
            )
        )
        accepted = [
            number
            for number, answer in enumerate(answers)
            if answer.status_code == HTTPStatus.ACCEPTED
        ]
        assert len(accepted) == 1
        await shop.wait_for_end(execution_id)
        result = await shop.ask(ada, "GET", f"/api/result/{execution_id}/ask")
        assert result.json()["data"]["by"] == f"person-{accepted[0]}"


async def test_nothing_is_approved_after_the_end(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        ada, bob = await shop.person("author", "ada"), await shop.person("operator", "bob")
        await shop.register(ada, GATE)
        execution_id = await shop.run(ada, "demo/gate")
        address = await shop.wait_for_approval(bob, execution_id)
        await shop.ask(ada, "POST", f"/api/executions/{execution_id}/cancel", json={})
        assert await shop.wait_for_end(execution_id) == "CANCELLED"

        async def is_not_asked() -> bool:
            listed = (await shop.ask(bob, "GET", "/api/approvals")).json()["approvals"]
            return not listed

        await eventually(is_not_asked)
        late = await shop.ask(bob, "POST", address, json=APPROVE)
        assert late.status_code == HTTPStatus.NOT_FOUND, late.text
        status = (await shop.ask(bob, "GET", f"/api/executions/{execution_id}/status")).json()
        assert status["status"] == "CANCELLED"
        assert "command.resumed" not in await shop.find_actors(execution_id)
