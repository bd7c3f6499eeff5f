"""`noetl webhook` against a planner's API."""

from pathlib import Path

from tests.support.api import PLAYBOOK
from tests.support.running_api import Noetl

from noetl_contracts import codec


def test_a_webhook_is_put_shown_and_removed(noetl: Noetl, tmp_path: Path) -> None:
    playbook, mapping = tmp_path / "hello.yaml", tmp_path / "inputs.yaml"
    playbook.write_text(PLAYBOOK)
    mapping.write_text('who: "{{ body.name }}"\n')
    assert noetl("register", str(playbook)).code == 0
    unsaid = noetl("webhook", "put", "orders", "demo/hello")
    assert (unsaid.code, "credential" in unsaid.err) == (2, True)
    fields = ("--type", "generic", "--data", "secret=xyzzy")
    assert noetl("credential", "put", "shop", *fields).code == 0
    asked = ("orders", "demo/hello", "--credential", "shop", "--inputs", str(mapping))
    put = noetl("webhook", "put", *asked)
    assert put.code == 0, put.err
    assert "/api/webhooks/orders starts demo/hello, signed with shop" in put.out
    (listed,) = codec.decode_json(noetl("webhook", "ls", "--json").out)
    assert listed["inputs"] == {"who": "{{ body.name }}"}
    assert "shop" in noetl("webhook", "ls").out
    assert "is removed" in noetl("webhook", "rm", "orders").out
    assert noetl("webhook", "rm", "orders").code == 2
