"""Scripts that a playbook carries, and scripts in a bucket, which an execution reads once."""

from base64 import b64encode
from typing import Any

import boto3
import pytest
from tests.support.calls import call_of
from tests.support.servers import S3Server
from tests.support.working import EXECUTION, ORGANIZATION, TENANT, Bench, bench, command_of

from noetl_contracts import codec
from noetl_contracts.requests.facts import CommandCompleted
from noetl_contracts.transient_objects import build_pin_name
from noetl_worker.tools.calls.call import Outcome

PLACE: dict[str, Any] = {"tenant_id": TENANT, "organization_id": ORGANIZATION}
# What a template would change.
CODE = "result = {'text': f'{{1}} {{% x %}}', 'n': n}\n"
STEP = """\
- step: s
  tool:
    kind: python
    input: {n: 3}
    script: {uri: a.py, source: {type: inline, code_b64: "%s"}}
"""


def client(s3: S3Server) -> Any:
    return boto3.session.Session().client(
        "s3",
        endpoint_url=s3.endpoint,
        region_name=s3.region,
        aws_access_key_id=s3.access_key,
        aws_secret_access_key=s3.secret_key,
    )


async def put_credential(worker: Bench, s3: S3Server) -> None:
    fields = {
        "endpoint": s3.endpoint,
        "region": s3.region,
        "access_key": s3.access_key,
        "secret_key": s3.secret_key,
    }
    await worker.put_credential("store", fields, kind="s3")


async def run(worker: Bench, uri: str, *, auth: Any = "store", **more: Any) -> Outcome:
    script = {"uri": uri, "source": {"auth": auth}, **more}
    return await worker.tools.run(call_of("python", {"script": script}, n=3))


async def test_a_carried_script_is_not_rendered() -> None:
    async with bench() as worker:
        facts = await worker.run(command_of(STEP % b64encode(CODE.encode()).decode()))
        completed = facts[-1]
        assert isinstance(completed, CommandCompleted), facts
        assert await worker.value(completed.result) == {"text": "{1} {% x %}", "n": 3}


async def test_a_carried_script_of_sql_runs() -> None:
    sql = b64encode(b"create table t as select 1 as one; select one + 1 as two from t").decode()
    fields = {"script": {"source": {"type": "inline", "code_b64": sql}}}
    async with bench() as worker:
        outcome = await worker.tools.run(call_of("duckdb", fields))
    assert outcome.error is None, outcome.error
    assert isinstance(outcome.data, dict)
    assert outcome.data["rows"] == [{"two": 2}]


async def test_what_is_no_base64_is_refused() -> None:
    async with bench() as worker:
        source = {"type": "inline", "code_b64": "&&"}
        outcome = await worker.tools.run(call_of("python", {"script": {"source": source}}))
    assert outcome.error is not None
    assert (outcome.error.kind, "code_b64" in outcome.error.message) == ("validation", True)


async def test_an_execution_runs_the_text_that_it_has_read_first(s3: S3Server) -> None:
    key, uri = "scripts/n.py", f"s3://{s3.bucket}/scripts/n.py"
    client(s3).put_object(Bucket=s3.bucket, Key=key, Body=b"result = n + 1")
    async with bench() as worker:
        await put_credential(worker, s3)
        first = await run(worker, uri)
        client(s3).put_object(Bucket=s3.bucket, Key=key, Body=b"result = n + 100")
        second = await run(worker, uri)
    assert (first.data, second.data) == (4, 4), (first, second)
    async with bench() as worker:
        await put_credential(worker, s3)
        # Another store is another deployment: nothing was read there yet.
        assert (await run(worker, uri)).data == 103
    client(s3).delete_object(Bucket=s3.bucket, Key=key)


async def test_the_digest_of_a_script_in_a_bucket_is_checked_and_logged(s3: S3Server) -> None:
    code = b"result = n"
    client(s3).put_object(Bucket=s3.bucket, Key="d.py", Body=code)
    uri = f"s3://{s3.bucket}/d.py"
    script = f"{{uri: '{uri}', source: {{auth: store}}}}"
    step = f"- step: s\n  tool: {{kind: python, input: {{n: 3}}, script: {script}}}\n"
    async with bench() as worker:
        await put_credential(worker, s3)
        facts = await worker.run(command_of(step))
        assert isinstance(facts[-1], CommandCompleted), facts
        name = build_pin_name(EXECUTION, uri=uri, auth="store")
        names = await worker.payloads.list_names("scripts/", **PLACE)
        logs = await worker.payloads.list_names("logs/", **PLACE)
        lines = [await worker.payloads.find_named(log, **PLACE) for log in logs]
        wrong = await run(worker, uri, sha256="0" * 64)
    assert names == [name]
    assert any(codec.digest_hex(code).encode() in (line or b"") for line in lines), logs
    assert wrong.error is not None
    assert "not the one that was meant" in wrong.error.message


@pytest.mark.parametrize(
    ("key", "auth", "kind", "says"),
    [
        ("absent.py", "store", "not_found", "there is no script"),
        ("large.py", "store", "limit", "has more than"),
        ("d.py", None, "config", "script.source.auth"),
        ("d.py", "nobody", "config", "'nobody' is not registered"),
        ("", "store", "validation", "is not s3://bucket/key"),
    ],
)
async def test_a_script_that_cannot_be_read_is_told(
    s3: S3Server, key: str, auth: str | None, kind: str, says: str
) -> None:
    client(s3).put_object(Bucket=s3.bucket, Key="large.py", Body=b"x" * (2 * 1024 * 1024 + 1))
    async with bench() as worker:
        await put_credential(worker, s3)
        outcome = await run(worker, f"s3://{s3.bucket}/{key}", auth=auth)
    assert outcome.error is not None
    assert (outcome.error.kind, says in outcome.error.message) == (kind, True), outcome.error
