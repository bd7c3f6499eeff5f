"""`noetl trigger`, `noetl pools` and `noetl status` against a planner's API."""

from pathlib import Path

from tests.support.api import PLAYBOOK
from tests.support.door import Noetl

from noetl_contracts import codec


def test_a_trigger_is_put_shown_and_removed(noetl: Noetl, tmp_path: Path) -> None:
    playbook, mapping = tmp_path / "hello.yaml", tmp_path / "inputs.yaml"
    playbook.write_text(PLAYBOOK)
    mapping.write_text('who: "{{ body.name }}"\n')
    assert noetl("register", str(playbook)).code == 0
    unsaid = noetl("trigger", "put", "orders", "demo/hello", "--subject", "a..b")
    assert (unsaid.code, "is no token" in unsaid.err) == (2, True)
    asked = ("orders", "demo/hello", "--subject", "orders.*", "--inputs", str(mapping))
    put = noetl("trigger", "put", *asked)
    assert put.code == 0, put.err
    assert ".orders.* start demo/hello" in put.out
    (listed,) = codec.decode(noetl("trigger", "ls", "--json").out)
    assert listed["inputs"] == {"who": "{{ body.name }}"}
    assert "orders.*" in noetl("trigger", "ls").out
    assert "is removed" in noetl("trigger", "rm", "orders").out
    assert noetl("trigger", "rm", "orders").code == 2


def test_the_pools_are_listed(noetl: Noetl) -> None:
    shown = noetl("pools")
    assert shown.code == 0, shown.err
    assert "default" in shown.out
    (pool,) = codec.decode(noetl("pools", "--json").out)
    assert (pool["transport"], pool["served"]) == ("jetstream", False)
