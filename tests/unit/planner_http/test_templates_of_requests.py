"""Hostile templates at the front door: registering and executing runs nothing of them."""

import pytest
from litestar import Litestar
from litestar.testing import AsyncTestClient
from tests.support.attacks import BOMBS, INJECTIONS, playbook

Api = AsyncTestClient[Litestar]

PLACES = [
    {"tool": {"kind": "noop", "result": "TEMPLATE"}},
    {"tool": {"kind": "noop"}, "set": {"ctx.k": "TEMPLATE"}},
    {"tool": {"kind": "noop"}, "next": {"arcs": [{"step": "s", "when": "TEMPLATE"}]}},
]


@pytest.mark.parametrize("level", ["tolerant", "strict"])
async def test_hostile_templates_are_registered_or_refused_and_never_run(
    api: Api, level: str
) -> None:
    answers = []
    for index, template in enumerate([*INJECTIONS, *BOMBS]):
        place = PLACES[index % len(PLACES)]
        step = {key: _filled(item, template) for key, item in place.items()}
        answer = await api.post(
            f"/api/catalog/register?level={level}",
            content=playbook(step).encode(),
            headers={"content-type": "text/yaml"},
        )
        assert answer.status_code in {200, 422}, (template, answer.text)
        answers.append(answer.status_code)
        if answer.status_code == 200:
            begun = await api.post("/api/execute", json={"path": "tests/hostile"})
            assert begun.status_code in {200, 201, 202}, (template, begun.text)
        else:
            assert answer.json()["diagnostics"], template
    # Some cannot even be compiled; the others are refused when they are rendered.
    assert {200, 422} <= set(answers)


async def test_hostile_inputs_are_data(api: Api) -> None:
    text = playbook({"tool": {"kind": "noop", "result": "{{ rows }}"}})
    await api.post(
        "/api/catalog/register", content=text.encode(), headers={"content-type": "text/yaml"}
    )
    for template in INJECTIONS[:20]:
        asked = {
            "path": "tests/hostile",
            "workload": {"rows": template, "row": {template[:100]: 1}},
        }
        begun = await api.post("/api/execute", json=asked)
        assert begun.is_success, begun.text


def _filled(value: object, template: str) -> object:
    if isinstance(value, dict):
        return {key: _filled(item, template) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, template) for item in value]
    return template if value == "TEMPLATE" else value
