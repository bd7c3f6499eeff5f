"""Subscription documents: what they say, what is wrong in them, and texts that hold others too."""

import pytest

from noetl_playbook.parse import mixed_text
from noetl_playbook.parse.playbook import parse_playbook
from noetl_playbook.parse.subscriptions import (
    Subscription,
    SubscriptionDispatch,
    SubscriptionSource,
)
from noetl_playbook.source.problems import Problem

HEAD = "apiVersion: noetl.io/v2\nkind: Subscription\nmetadata: {name: orders}\n"
WHOLE = (
    HEAD
    + """\
spec:
  source: {type: nats, subject: "orders.*"}
  filter: "{{ body.total > 100 }}"
  dispatch:
    playbook: sales/order
    version: 2
    input: {order: "{{ body }}", id: "{{ message_id }}"}
  body_bytes_max: 1000
  max_in_flight: 3
  enabled: false
"""
)
PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: order, path: sales/order}
workflow:
  - {step: start, tool: {kind: noop}}
"""


def only(text: str) -> tuple[Subscription | None, list[Problem]]:
    (found,) = mixed_text.read_mixed_text(text).subscriptions
    return found.subscription, list(found.problems)


def test_a_subscription_says_source_filter_and_playbook() -> None:
    assert only(WHOLE) == (
        Subscription(
            name="orders",
            source=SubscriptionSource(subject="orders.*"),
            dispatch=SubscriptionDispatch(
                playbook="sales/order",
                version=2,
                input={"order": "{{ body }}", "id": "{{ message_id }}"},
            ),
            filter="{{ body.total > 100 }}",
            body_bytes_max=1000,
            max_in_flight=3,
            enabled=False,
        ),
        [],
    )


def test_a_source_may_be_named_by_its_type_with_the_subject_beside_it() -> None:
    short = "spec: {source: nats, subject: a.b, dispatch: {playbook: p}}\n"
    long = "spec: {source: {subject: a.b}, dispatch: {playbook: p}}\n"
    assert only(HEAD + short) == only(HEAD + long)
    assert only(HEAD + short)[1] == []


@pytest.mark.parametrize(
    ("spec", "code", "line", "says"),
    [
        ("{dispatch: {playbook: p}}", "E104", 4, "'source' is required here"),
        ("{source: {subject: a}}", "E104", 4, "'dispatch' is required here"),
        ("{source: {subject: a}, dispatch: {}}", "E104", 4, "'playbook' is required here"),
        ("{source: kafka, dispatch: {playbook: p}}", "E104", 4, "source 'kafka' is not available"),
        ("{source: nats, dispatch: {playbook: p}}", "E104", 4, "'subject' is required here"),
        ("{source: {subject: a..b}, dispatch: {playbook: p}}", "E104", 4, "is no token"),
        ("{source: {subject: a, stream: S}, dispatch: {playbook: p}}", "E103", 4, "own stream"),
        ("{source: nats, subject: a, auth: n, dispatch: {playbook: p}}", "E103", 4, "own stream"),
        ("{source: {subject: a}, ack: late, dispatch: {playbook: p}}", "E103", 4, "always"),
        ("{source: {subject: a}, max_in_flight: 0, dispatch: {playbook: p}}", "E104", 4, "10000"),
        (
            "{source: {subject: a}, concurrency: 2, dispatch: {playbook: p}}",
            "E103",
            4,
            "max_in_flight",
        ),
        ("{source: {subject: a}, fliter: x, dispatch: {playbook: p}}", "E103", 4, "'fliter'"),
        ("{source: {subject: a}, dispatch: {playbook: p, pool: g}}", "E103", 4, "the playbook's"),
        ("{source: {subject: a}, dispatch: {playbook: p, version: 0}}", "E104", 4, "1 and above"),
        ("{source: {subject: a}, filter: true, dispatch: {playbook: p}}", "E104", 4, "condition"),
        (
            '{source: {subject: a}, filter: "{{ bdy.n }}", dispatch: {playbook: p}}',
            *("E303", 4, "'bdy' is nothing of a message"),
        ),
        (
            '{source: {subject: a}, filter: "{{ body.n > }}", dispatch: {playbook: p}}',
            *("E301", 4, ""),
        ),
        (
            '{source: {subject: a}, dispatch: {playbook: p, input: {n: "{{ workload.n }}"}}}',
            *("E303", 4, "'workload' is nothing of a message"),
        ),
        (
            "{source: {subject: a}, body_bytes_max: 0, dispatch: {playbook: p}}",
            "E104",
            4,
            "between",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_place(spec: str, code: str, line: int, says: str) -> None:
    found, problems = only(f"{HEAD}spec: {spec}\n")
    errors = [problem for problem in problems if problem.is_error]
    assert found is None
    assert [(error.code, error.line) for error in errors] == [(code, line)], errors
    assert says in errors[0].message


@pytest.mark.parametrize(
    ("head", "code"),
    [
        ("kind: Subscription\nmetadata: {name: a}\n", "E102"),
        ("apiVersion: noetl.io/v2\nkind: Subscription\n", "E104"),
        ("apiVersion: noetl.io/v2\nkind: Subscription\nmetadata: {name: a b}\n", "E104"),
        (
            "apiVersion: noetl.io/v2\nkind: Subscription\nmetadata: {name: a}\nworkflow: []\n",
            "E103",
        ),
    ],
)
def test_the_head_is_checked(head: str, code: str) -> None:
    _, problems = only(head + "spec: {source: {subject: a}, dispatch: {playbook: p}}\n")
    assert [problem.code for problem in problems if problem.is_error] == [code]


def test_a_filter_without_braces_is_a_condition_all_the_same() -> None:
    found, problems = only(
        HEAD + "spec: {source: {subject: a}, filter: body.n > 1, dispatch: {playbook: p}}\n"
    )
    assert found is not None
    assert found.filter == "body.n > 1"
    assert [problem.code for problem in problems] == ["W905"]


def test_playbooks_keep_their_lines_beside_subscriptions() -> None:
    text = f"---\n{WHOLE}---\n{PLAYBOOK}---\n{WHOLE.replace('orders', 'others', 1)}"
    found = mixed_text.read_mixed_text(text)
    assert [
        subscription.subscription and subscription.subscription.name
        for subscription in found.subscriptions
    ] == [
        "orders",
        "others",
    ]
    assert len(found.playbooks) == 1
    assert found.all_problems == []
    assert parse_playbook(found.playbook_text).problems == ()
    lines = found.playbook_text.splitlines()
    assert lines.index("kind: Playbook") == text.splitlines().index("kind: Playbook")
    assert "Subscription" not in found.playbook_text


def test_problems_come_in_the_order_of_the_text() -> None:
    bad_subscription = WHOLE.replace("orders.*", "a..b")
    bad_playbook = PLAYBOOK.replace("kind: noop", "kind: nope")
    found = mixed_text.read_mixed_text(
        f"{bad_subscription}---\n{bad_playbook}---\n{bad_subscription}"
    )
    lines = [problem.line for problem in found.all_problems if problem.is_error]
    assert lines == sorted(lines)
    assert len(lines) == 3


@pytest.mark.parametrize("text", ["a: [", "", "\x00"])
def test_a_text_that_is_no_yaml_is_told_once(text: str) -> None:
    found = mixed_text.read_mixed_text(text)
    assert [one.code for one in found.all_problems] == ["E101"]
    assert mixed_text.read_mixed_bytes(text.encode()).all_problems == found.all_problems


def test_a_subscription_is_no_playbook() -> None:
    hints = [problem.hint for problem in parse_playbook(WHOLE).problems if problem.path == "kind"]
    assert hints == ["noetl register FILE keeps it"]
