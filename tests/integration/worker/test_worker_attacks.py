"""Hostile templates where a worker renders: each is one task's error, and the worker goes on."""

from typing import Any

import pytest
from tests.support.attacks import BOMBS, INJECTIONS
from tests.support.working import bench, command_of, step_of

from noetl_contracts.commands.command_work import StepResult
from noetl_contracts.payloads import PayloadRef, ResultEnvelope
from noetl_contracts.requests.facts import CommandCompleted, CommandFailed
from noetl_playbook.templates import render_limits
from noetl_playbook.templates.expressions import TemplateError, compile_value
from noetl_playbook.templates.render_limits import RenderLimits

pytestmark = pytest.mark.timeout(120)

WORKLOAD = {"row": {"x": 1}, "rows": [{"x": 1}, {"x": 2}], "day": "2026-01-02"}


def compiles(template: str) -> bool:
    try:
        compile_value(template)
    except TemplateError:
        return False
    return True


def pipeline(templates: list[str]) -> dict[str, Any]:
    """A step with one task for every template, each of which may fail."""
    step = step_of("- step: s\n  tool: [{name: t0, kind: noop}]\n")
    (task,) = step["tool"]
    step["tool"] = [
        {**task, "name": f"t{index}", "fields": {"result": item}, "on_unmatched": "continue"}
        for index, item in enumerate(templates)
    ]
    return step


@pytest.mark.parametrize(("corpus", "least"), [(INJECTIONS, 60), (BOMBS, 55)])
async def test_every_hostile_template_is_an_error_of_its_task(
    monkeypatch: pytest.MonkeyPatch, corpus: list[str], least: int
) -> None:
    monkeypatch.setattr(render_limits, "WORKER", RenderLimits(seconds=0.2))
    templates = [template for template in corpus if compiles(template)]
    assert len(templates) >= least
    async with bench(lease_s=120.0) as worker:
        (*_, last) = await worker.run(command_of(pipeline(templates), workload=WORKLOAD))
        assert isinstance(last, CommandCompleted), last
        found = await worker.value(last.result)
    for index, template in enumerate(templates):
        error = found["results"][f"t{index}"]["error"]
        assert error["kind"] in {"template", "limit"}, (template, error)
        assert f"task 't{index}', field 'result'" in error["message"]


async def test_a_template_that_loads_too_much_says_what_to_do() -> None:
    reference = PayloadRef(
        uri="noetl://tenant/acme/org/west/payloads/sha256/" + "0" * 64,
        sha256="0" * 64,
        media_type="application/json",
        payload_bytes=257 * 1024 * 1024,
    )
    stored = ResultEnvelope(status="ok", reference=reference, context={"shape": "pipeline"})
    step = '- step: s\n  tool: {kind: noop, result: "{{ big.data.rows[0] }}"}\n'
    async with bench() as worker:
        command = command_of(step, steps={"big": StepResult(status="ok", result=stored)})
        (*_, last) = await worker.run(command)
    assert isinstance(last, CommandFailed), last
    assert last.error.kind == "payload_too_large"
    assert "output.select" in last.error.message
