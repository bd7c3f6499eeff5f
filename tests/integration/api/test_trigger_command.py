"""`noetl trigger`, `noetl pools` and `noetl status` against a planner's API."""

from pathlib import Path

from tests.support.api import PLAYBOOK
from tests.support.running_api import Noetl

from noetl_contracts import codec


def test_a_trigger_is_put_shown_and_removed(noetl: Noetl, tmp_path: Path) -> None:
    playbook, mapping = tmp_path / "hello.yaml", tmp_path / "inputs.yaml"
    playbook.write_text(PLAYBOOK)
    mapping.write_text('who: "{{ body.name }}"\n')
    assert noetl("register", str(playbook)).code == 0
    unsaid = noetl("trigger", "put", "orders", "demo/hello", "--subject", "a..b")
    assert (unsaid.code, "is no token" in unsaid.err) == (2, True)
    asked = ("orders", "demo/hello", "--subject", "orders.*", "--inputs", str(mapping))
    put = noetl("trigger", "put", *asked, "--max-in-flight", "3")
    assert put.code == 0, put.err
    assert ".orders.* start demo/hello" in put.out
    (listed,) = codec.decode_json(noetl("trigger", "ls", "--json").out)
    assert (listed["inputs"], listed["max_in_flight"]) == ({"who": "{{ body.name }}"}, 3)
    assert "orders.*" in noetl("trigger", "ls").out
    assert "is removed" in noetl("trigger", "rm", "orders").out
    assert noetl("trigger", "rm", "orders").code == 2


SUBSCRIPTION = """\
apiVersion: noetl.io/v2
kind: Subscription
metadata: {name: orders}
spec:
  source: {type: nats, subject: "orders.*"}
  filter: "{{ body.total > 100 }}"
  max_in_flight: 2
  dispatch: {playbook: demo/hello, input: {who: "{{ body.name }}"}}
"""


def test_a_subscription_is_registered_listed_paused_and_removed(
    noetl: Noetl, tmp_path: Path
) -> None:
    file = tmp_path / "orders.yaml"
    file.write_text(f"{SUBSCRIPTION}---\n{PLAYBOOK}")
    assert noetl("lint", str(file)).code == 0
    registered = noetl("register", str(file))
    assert registered.code == 0, registered.err
    assert "demo/hello version 1" in registered.out
    assert "subscription orders: messages of noetl.triggers." in registered.out
    (listed,) = codec.decode_json(noetl("trigger", "ls", "--json").out)
    assert (listed["subject"], listed["filter"]) == ("orders.*", "{{ body.total > 100 }}")
    assert listed["inputs"] == {"who": "{{ body.name }}"}
    assert "is paused" in noetl("trigger", "pause", "orders").out
    (paused,) = codec.decode_json(noetl("trigger", "ls", "--json").out)
    assert paused == {**listed, "enabled": False}
    assert "again" in noetl("trigger", "resume", "orders").out
    assert codec.decode_json(noetl("trigger", "ls", "--json").out) == [listed]
    assert noetl("trigger", "rm", "orders").code == 0
    assert noetl("trigger", "pause", "orders").code == 2


def test_subscriptions_of_a_folder_are_kept_after_its_playbooks(
    noetl: Noetl, tmp_path: Path
) -> None:
    (tmp_path / "a.yaml").write_text(SUBSCRIPTION)
    (tmp_path / "b.yaml").write_text(PLAYBOOK)
    done = noetl("register", str(tmp_path), "--json")
    assert done.code == 0, done.err
    answer = codec.decode_json(done.out)
    assert [subscription["name"] for subscription in answer["subscriptions"]] == ["orders"]
    assert len(answer["files"]) == 1
    (tmp_path / "c.yaml").write_text(SUBSCRIPTION)
    twice = noetl("register", str(tmp_path))
    assert (twice.code, "nothing was done" in twice.err) == (2, True)


def test_a_subscription_that_cannot_be_kept_is_told(noetl: Noetl, tmp_path: Path) -> None:
    file = tmp_path / "orders.yaml"
    file.write_text(SUBSCRIPTION)
    unknown = noetl("register", str(file))
    assert (unknown.code, "no playbook is registered" in unknown.err) == (2, True)
    assert "Subscription 'orders', field spec.dispatch: no playbook is registered" in unknown.err
    file.write_text(SUBSCRIPTION.replace("type: nats", "type: kafka"))
    bus = noetl("register", str(file))
    assert (bus.code, "source 'kafka' is not available" in bus.err) == (2, True)
    run = noetl("run", str(file))
    assert (run.code, "E102" in run.err) == (2, True)


def test_the_pools_are_listed(noetl: Noetl) -> None:
    shown = noetl("pools")
    assert shown.code == 0, shown.err
    assert "default" in shown.out
    (pool,) = codec.decode_json(noetl("pools", "--json").out)
    assert (pool["transport"], pool["served"]) == ("jetstream", False)
