"""Templates that take long are rendered in children: the loop is not held, and each has its end."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.loop_lag import measure_fork_s, watch_loop

from noetl_chassis import computation_deadline
from noetl_planner.shards.render_processes import RenderProcesses
from noetl_playbook.templates import render_limits
from noetl_playbook.templates.expressions import TemplateError, compile_condition, compile_value
from noetl_playbook.templates.render_limits import RenderLimits
from noetl_playbook.templates.render_record import RenderRecord
from noetl_playbook.templates.scope import ScopeParts, TemplateScope

# The loop's own share of a fork and of what a child sends is within this.
HELD_MAX_S = 0.05
LIMIT_S = 1.0
SLOW = "{% set n = namespace(i=0) %}{% for i in range(99999) %}{% set n.i = n.i + 1 %}{% endfor %}"
ENDLESS = (
    "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}true",
    "{{ ('a' * 40 ~ 'b') | regex_search('(a+)+$') }}",
    "{{ range(99999) | select('in', long) | list | length > 3 }}",
)


@pytest.fixture
def _guarded() -> Iterator[None]:
    with computation_deadline.own_deadline_timer() as guard, render_limits.install_guard(guard):
        yield


LONG = [str(number) for number in range(100_000)]


def names(renders: RenderRecord) -> TemplateScope:
    """Give what the templates may name."""
    parts = ScopeParts(limits=RenderLimits(seconds=LIMIT_S), renders=renders)
    return TemplateScope({"long": LONG, "n": 3}, parts)


@pytest.mark.usefixtures("_guarded")
async def test_slow_values_are_what_they_would_be_here() -> None:
    calls: list[Any] = []

    def compute(renders: RenderRecord) -> Any:
        scope = names(renders)
        calls.append(renders)
        value = compile_value(SLOW + "{{ n.i }}").render(scope)
        holds = compile_condition(SLOW + "{{ n.i > 5 }}").evaluate_condition(scope)
        return value, holds, compile_value("{{ n + 1 }}").render(scope)

    assert await RenderProcesses().render_computation(compute) == ("99999", (True, None), 4)
    # Here it was begun, and made with what the child had rendered.
    assert len(calls) == 2


@pytest.mark.usefixtures("_guarded")
@pytest.mark.parametrize("template", ENDLESS)
async def test_endless_template_has_its_own_error_and_does_not_hold_the_loop(template: str) -> None:
    condition = compile_condition(template)
    async with watch_loop() as lag:
        # A fast machine comes to the bound of the loops first.
        bounds = f"takes longer than {LIMIT_S:g} s|the loops run more than"
        with pytest.raises(TemplateError, match=bounds):
            await RenderProcesses().render_computation(
                lambda renders: condition.evaluate_condition(names(renders))
            )
    assert lag.held_over(HELD_MAX_S + 2 * measure_fork_s()) == []


@pytest.mark.usefixtures("_guarded")
async def test_call_that_nothing_interrupts_is_ended_by_the_kernel() -> None:
    def hold(_scope: Any) -> Any:
        return sum(range(10**12))

    run = render_limits.watch_render(
        hold,
        lambda error: TemplateError(str(error), expression="here"),
        expression="there",
        is_cheap=False,
    )

    def compute(renders: RenderRecord) -> Any:
        # Too much was rendered before: what follows is made in a child.
        compile_value(SLOW).render(names(renders))
        return run(names(renders))

    with pytest.raises(TemplateError, match="takes longer than 1 s in there"):
        await RenderProcesses().render_computation(compute)
