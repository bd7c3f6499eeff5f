"""Defaults of `workload` that meet a request: merged key by key, rendered where it says nothing."""

from typing import Any

import pytest
from tests.support.planning import PlannerHarness

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\n"


def started(defaults: str, request: dict[str, Any]) -> PlannerHarness:
    harness = PlannerHarness(
        f"{HEAD}workload: {defaults}\nworkflow:\n  - {{step: a, tool: {{kind: noop}}}}\n"
    )
    harness.start(**request)
    return harness


@pytest.mark.parametrize(
    ("defaults", "request_", "merged"),
    [
        # A sibling sees what a mapping has come to, under both of its names.
        (
            '{opts: {region: eu, timeout: 5}, tag: "{{ workload.opts.region }}"}',
            {"opts": {"region": "us"}},
            {"opts": {"region": "us", "timeout": 5}, "tag": "us"},
        ),
        (
            '{opts: {region: eu, timeout: 5}, tag: "{{ opts.region }}-{{ opts.timeout }}"}',
            {"opts": {"region": "us"}},
            {"opts": {"region": "us", "timeout": 5}, "tag": "us-5"},
        ),
        (
            '{a: {b: {c: 1, d: 2}}, tag: "{{ a.b.c + workload.a.b.d }}"}',
            {"a": {"b": {"c": 10}}},
            {"a": {"b": {"c": 10, "d": 2}}, "tag": 12},
        ),
        # What only the request has is a sibling too.
        ('{tag: "{{ workload.more.x }}"}', {"more": {"x": 1}}, {"more": {"x": 1}, "tag": 1}),
        # A key that the request supplies is not rendered, at any depth.
        ('{opts: {a: "{{ nope }}", b: 1}}', {"opts": {"a": 3}}, {"opts": {"a": 3, "b": 1}}),
        ('{opts: {a: {b: "{{ nope }}"}}}', {"opts": {"a": 3}}, {"opts": {"a": 3}}),
        ('{opts: {a: "{{ nope }}"}}', {"opts": {"a": {"b": 1}}}, {"opts": {"a": {"b": 1}}}),
        ('{opts: {a: "{{ nope }}"}}', {"opts": 3}, {"opts": 3}),
        ('{opts: "{{ nope }}"}', {"opts": {"a": 3}}, {"opts": {"a": 3}}),
        # Inside its own default a key is what the request says of it.
        (
            '{opts: {a: "{{ opts.b }}", c: "{{ opts.a | default(7) }}"}}',
            {"opts": {"b": 2}},
            {"opts": {"a": 2, "b": 2, "c": 7}},
        ),
        # Lists are replaced, and what a request says is data.
        ('{a: [1, 2], b: "{{ a }}"}', {"a": ["{{ 1 }}"]}, {"a": ["{{ 1 }}"], "b": ["{{ 1 }}"]}),
    ],
)
def test_a_request_is_laid_over_the_defaults_before_siblings_read_them(
    defaults: str, request_: dict[str, Any], merged: dict[str, Any]
) -> None:
    harness = started(defaults, request_)
    assert harness.events("playbook.failed") == []
    assert harness.state.workload == merged


@pytest.mark.parametrize(
    ("defaults", "message"),
    [
        ('{a: "{{ workload }}"}', "field 'a': the default of 'a' refers to itself"),
        ('{a: "{{ b }}", b: "{{ a }}"}', "'a' is undefined"),
        ('{a: {b: "{{ workload.a.b }}"}}', "field 'a.b': 'workload.a.b' is undefined"),
    ],
)
def test_a_default_that_needs_itself_fails_the_execution_at_its_start(
    defaults: str, message: str
) -> None:
    (failed,) = started(defaults, {}).events("playbook.failed")
    assert (failed.error.kind, failed.step) == ("template", "(workload)")
    assert message in failed.error.message
