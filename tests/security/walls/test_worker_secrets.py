"""A secret of the worker itself leaves it masked, like one of a playbook."""

import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.working import KEY, Bench, bench, command_of

from noetl_contracts import codec

PASSWORD = "nats-pass-of-the-worker"  # noqa: S105 - of this test alone
STORE = "secret-of-the-store"
SECRETS = (PASSWORD, STORE, KEY)


@pytest.fixture
async def worker() -> AsyncIterator[Bench]:
    async with bench(
        nats_url=f"nats://worker:{PASSWORD}@127.0.0.1:4222", payload_secret_key=STORE
    ) as found:
        yield found


@pytest.mark.parametrize("secret", SECRETS, ids=["address", "store", "key"])
@pytest.mark.parametrize(
    "code",
    [
        "return {'found': S}",
        "return {S: 1}",
        "return {'inner': json.dumps({'s': S})}",
        "return base64.b64encode(S.encode()).decode()",
        "raise ValueError(S)",
        "print(S)\nlogging.warning(S)\nreturn 1",
        "sys.exit(S)",
    ],
)
async def test_it_is_masked_wherever_code_shows_it(worker: Bench, secret: str, code: str) -> None:
    hidden = base64.b64encode(secret[::-1].encode()).decode()
    source = f"S = base64.b64decode({hidden!r}).decode()[::-1]\n{code}"
    step: dict[str, Any] = {"step": "s", "tool": {"kind": "python", "code": source}}
    facts = await worker.run(command_of(f"- {codec.encode_text(step)}"))
    seen = codec.encode_text(facts)
    assert "***" in seen or "print(" in code
    assert secret not in seen
    assert base64.b64encode(secret.encode()).decode() not in seen
