"""The artifact tool: what is put is got again, from every place, and nothing else is."""

import gzip
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.attempting import attempt, data_of, files_of, of_organization, site_of
from tests.support.scripted import Script, says
from tests.support.servers import S3Server
from tests.support.working import Bench, bench, command_of

from noetl_contracts import codec
from noetl_contracts.commands.command_work import StepResult
from noetl_contracts.ids import OrganizationId
from noetl_contracts.requests.facts import CommandCompleted, CommandFailed

ROWS = [{"i": 1, "t": "a"}, {"i": 2, "t": "b"}]
TABLE = {"columns": ["i", "t"], "rows": ROWS, "row_count": 2}
TYPED = {**TABLE, "types": ["int64", "string"]}


@pytest.fixture
async def worker(tmp_path: Path) -> AsyncIterator[Bench]:
    async with bench(work_directory=str(tmp_path)) as found:
        yield found


async def put(worker: Bench, **fields: Any) -> Any:
    return await data_of(worker, "artifact", {"action": "put", **fields})


async def get(worker: Bench, **fields: Any) -> Any:
    return await data_of(worker, "artifact", {"action": "get", **fields})


async def refused(worker: Bench, **fields: Any) -> Any:
    found = await attempt(worker, "artifact", fields)
    assert found.error is not None, found.data
    return found.error


@pytest.mark.parametrize(
    ("fields", "read"),
    [
        ({"data": {"a": [1, None]}}, {"a": [1, None]}),
        ({"data": [1, 2]}, [1, 2]),
        ({"data": "just text"}, "just text"),
        ({"data": None}, None),
        ({"data": {"a": 1}, "compress": "gzip"}, {"a": 1}),
        ({"data": {"a": 1}, "compress": "zstd"}, {"a": 1}),
        ({"data": {"a": 1}, "compress": True}, {"a": 1}),
        ({"data": ROWS, "format": "ndjson"}, ROWS),
        ({"data": ROWS, "format": "csv"}, TYPED),
        ({"data": ROWS, "format": "parquet"}, TYPED),
        ({"data": TABLE, "format": "arrow"}, TYPED),
        ({"data": "AAH/", "format": "bytes"}, "AAH/"),
    ],
)
async def test_what_is_put_is_got(worker: Bench, fields: dict[str, Any], read: Any) -> None:
    kept = await put(worker, **fields)
    stored = next(iter(worker.payloads.bytes_by_key.values()))
    assert kept["size_bytes"] == len(stored)
    assert kept["sha256"] == codec.digest_hex(stored)
    found = await get(worker, result_ref=kept["ref"])
    assert found["data"] == read
    assert found["size_bytes"] == len(stored)
    assert found["sha256"] == kept["sha256"]
    assert found["uri"] == kept["uri"]
    if not fields.get("format"):
        # The address alone does not tell a format, but JSON and text show what they are.
        assert (await get(worker, uri=kept["uri"]))["data"] == read


async def test_compression_compresses(worker: Bench) -> None:
    data = ["the same text"] * 5000
    small = await put(worker, data=data, compress="zstd")
    assert small["size_bytes"] < len(codec.encode_json(data)) / 20


async def test_a_name_has_versions_and_ends(worker: Bench) -> None:
    uri = "artifact://reports/daily"
    missing = await refused(worker, action="get", uri=uri)
    assert missing.kind == "not_found"
    await put(worker, data={"n": 1}, uri=uri)
    await put(worker, data={"n": 2}, uri=uri)
    assert (await get(worker, uri=uri))["data"] == {"n": 2}
    await data_of(worker, "artifact", {"action": "delete", "uri": uri})
    assert (await refused(worker, action="get", uri=uri)).kind == "not_found"
    await put(worker, data={"n": 3}, uri=uri)
    assert (await get(worker, uri=uri))["data"] == {"n": 3}


@pytest.mark.parametrize("name", ["", "../x", "a//b", ".x", "a/../b", "a b", "x" * 2000])
async def test_a_name_is_a_name(worker: Bench, name: str) -> None:
    error = await refused(worker, action="put", data=1, uri=f"artifact://{name}")
    assert error.kind == "validation"


@pytest.mark.parametrize("prefix", ["file://", "", "noetl://files/"])
async def test_a_file_is_written_read_and_removed(worker: Bench, prefix: str) -> None:
    uri = f"{prefix}out/rows.csv"
    await put(worker, data=ROWS, uri=uri, format="csv")
    assert (await get(worker, uri=uri, format="text"))["data"] == '"i","t"\n1,"a"\n2,"b"\n'
    assert (await get(worker, uri=uri))["data"] == TYPED
    await data_of(worker, "artifact", {"action": "delete", "uri": uri})
    assert (await refused(worker, action="get", uri=uri)).kind == "not_found"


async def test_files_of_the_organization_lie_in_the_work_directory(
    worker: Bench, tmp_path: Path
) -> None:
    uri = of_organization("out/rows.csv")
    await put(worker, data=ROWS, uri=uri, format="csv")
    assert (files_of(tmp_path) / "out/rows.csv").read_text() == '"i","t"\n1,"a"\n2,"b"\n'
    (files_of(tmp_path) / "a.json.gz").write_bytes(gzip.compress(b'{"a":1}'))
    for name in (of_organization("a.json.gz"), f"file://{files_of(tmp_path)}/a.json.gz"):
        assert (await get(worker, uri=name))["data"] == {"a": 1}
    await data_of(worker, "artifact", {"action": "delete", "uri": uri})
    assert not (files_of(tmp_path) / "out/rows.csv").exists()


async def test_a_file_that_only_the_organization_has_is_told(worker: Bench, tmp_path: Path) -> None:
    (files_of(tmp_path) / "a.json").write_text("1")
    error = await refused(worker, action="get", uri="a.json")
    assert error.kind == "not_found"
    assert "a file of the organization is named noetl://files/a.json" in error.message
    missing = (await refused(worker, action="get", uri="b.json")).message
    assert "organization" not in missing
    assert missing.endswith("take this one along with `noetl run FILE --file b.json`")


@pytest.mark.parametrize("action", ["get", "put", "delete"])
@pytest.mark.parametrize(
    "uri",
    [
        "file:///etc/passwd",
        "file://../../../../x",
        "file://%2e%2e/%2e%2e/x",
        "file://a/../../x",
        "/etc/passwd",
        "noetl://files/link/x",
        "noetl://files/outside",
        "a%00b",
        "a\x00b",
    ],
)
async def test_no_file_outside_is_touched(
    worker: Bench, tmp_path: Path, action: str, uri: str
) -> None:
    outside = tmp_path / "secret"
    outside.write_text("1")
    (files_of(tmp_path) / "link").symlink_to("/etc")
    (files_of(tmp_path) / "outside").symlink_to(outside)
    if uri == "a%00b":
        uri = "file://a%00b"
    error = await refused(worker, action=action, uri=uri, data="x")
    assert error.kind == "config"
    assert outside.read_text() == "1"


@pytest.mark.parametrize(
    ("action", "uri", "way"),
    [
        ("get", "nats-kv://b/k", "kind nats"),
        ("get", "eventlog://1", "kind http"),
        ("get", "ftp://h/x", "s3://"),
        ("put", "https://example.com/x", "kind http"),
        ("put", "noetl://tenant/acme/org/west/payloads/sha256/" + "0" * 64, "artifact://"),
        ("get", "s3://bucket/key", "credential"),
        ("get", "noetl://somewhere", "does not point to a payload"),
    ],
)
async def test_the_way_out_is_named(worker: Bench, action: str, uri: str, way: str) -> None:
    error = await refused(worker, action=action, uri=uri, data=1)
    assert error.kind == "config"
    assert way in error.message


async def test_http_is_read_under_the_rules_of_http(worker: Bench, server: Script) -> None:
    server.answers(says({"a": 1}))
    found = await get(worker, uri=server.url + "/x.json")
    assert found["data"] == {"a": 1}
    assert found["media_type"].startswith("application/json")
    error = await refused(worker, action="get", uri="http://169.254.169.254/latest")
    assert (error.kind, "not allowed" in error.message) == ("config", True)


async def test_a_bucket_is_reached_with_a_credential(worker: Bench, s3: S3Server) -> None:
    fields = {
        "endpoint": s3.endpoint,
        "region": s3.region,
        "access_key": s3.access_key,
        "secret_key": s3.secret_key,
    }
    await worker.put_credential("store", fields, kind="s3")
    await worker.put_credential("cloud", fields, kind="gcs_hmac")
    for scheme, auth in (("s3", "store"), ("gs", "cloud")):
        uri = f"{scheme}://{s3.bucket}/out/rows.json"
        kept = await data_of(
            worker, "artifact", {"action": "put", "data": ROWS, "uri": uri}, auth=auth
        )
        assert kept["uri"] == uri
        found = await data_of(worker, "artifact", {"action": "get", "uri": uri}, auth=auth)
        assert found["data"] == ROWS
        assert found["sha256"] == kept["sha256"]
        await data_of(worker, "artifact", {"action": "delete", "uri": uri}, auth=auth)
        gone = await attempt(worker, "artifact", {"action": "get", "uri": uri}, auth=auth)
        assert gone.error is not None
        assert gone.error.kind == "not_found"
    wrong = {"type": "s3", **fields}
    inline = await attempt(
        worker, "artifact", {"action": "get", "uri": f"s3://{s3.bucket}/x"}, auth=wrong
    )
    assert inline.error is not None
    assert inline.error.kind == "config"


@pytest.mark.usefixtures("_brief_pauses")
async def test_a_missing_payload_can_be_tried_again(worker: Bench) -> None:
    kept = await put(worker, data={"a": 1})
    await data_of(worker, "artifact", {"action": "delete", "result_ref": kept["ref"]})
    error = await refused(worker, action="get", result_ref=kept["ref"])
    assert (error.kind, error.code, error.retryable) == (
        "reference_not_available",
        "REFERENCE_NOT_AVAILABLE",
        True,
    )


async def test_damaged_bytes_are_not_handed_out(worker: Bench) -> None:
    kept = await put(worker, data={"a": 1})
    (key,) = worker.payloads.bytes_by_key
    worker.payloads.bytes_by_key[key] = b'{"a":2}'
    error = await refused(worker, action="get", result_ref=kept["ref"])
    assert error.kind == "storage_quota"
    assert "digest" in error.message


@pytest.mark.usefixtures("_brief_pauses")
async def test_references_of_others_lead_nowhere(worker: Bench) -> None:
    kept = await put(worker, data={"a": 1})
    other = site_of(organization_id=OrganizationId("east"))
    by_address = await attempt(worker, "artifact", {"action": "get", "uri": kept["uri"]}, at=other)
    assert by_address.error is not None
    assert by_address.error.kind == "config"
    by_mapping = await attempt(
        worker, "artifact", {"action": "get", "result_ref": kept["ref"]}, at=other
    )
    assert by_mapping.error is not None
    assert by_mapping.error.kind == "reference_not_available"


@pytest.mark.parametrize("digest", ["", "x", "../../etc", None, "0" * 63])
async def test_a_reference_without_a_digest_is_refused(worker: Bench, digest: Any) -> None:
    ref = {"kind": "result_ref", "ref": "noetl://execution/1/result/s/1", "sha256": digest}
    assert (await refused(worker, action="get", result_ref=ref)).kind == "validation"


async def test_fields_may_stand_under_input(worker: Bench) -> None:
    kept = await data_of(
        worker, "artifact", {"action": "put"}, given={"data": {"a": 1}, "compress": "gzip"}
    )
    assert kept["media_type"] == "application/json+gzip"


@pytest.mark.parametrize(
    "fields",
    [
        {"action": "take"},
        {"action": "put"},
        {"action": "get"},
        {"action": "put", "data": 1, "format": "xml"},
        {"action": "put", "data": 1, "compress": "lzma"},
        {"action": "put", "data": 1, "format": "csv"},
        {"action": "put", "data": "!", "format": "bytes"},
    ],
)
async def test_wrong_fields_are_named(worker: Bench, fields: dict[str, Any]) -> None:
    assert (await refused(worker, **fields)).kind == "validation"


async def test_a_bomb_does_not_go_off(worker: Bench, tmp_path: Path) -> None:
    (files_of(tmp_path) / "bomb.json.gz").write_bytes(gzip.compress(b"\0" * 300 * 1024**2, 1))
    error = await refused(worker, action="get", uri=of_organization("bomb.json.gz"))
    assert error.kind == "payload_too_large"
    assert "the limit is 268435456" in error.message


async def test_a_stored_result_is_got_whole(worker: Bench) -> None:
    *_, first = await worker.run(
        command_of("""
  - step: extract
    tool:
      kind: python
      code: "return {'count': 5000, 'rows': [{'i': i} for i in range(5000)]}"
      output: {select: [{path: count}]}
""")
    )
    assert isinstance(first, CommandCompleted)
    steps = {"extract": StepResult(status="ok", result=first.result)}
    for source in ("{{ extract._ref }}", "{{ extract._ref.ref }}", "{{ extract }}"):
        *_, done = await worker.run(
            command_of(
                """
  - step: s
    tool:
      - {name: whole, kind: artifact, action: get, result_ref: "SOURCE"}
      - name: see
        kind: python
        input:
          n: "{{ whole.rows | length }}"
          c: "{{ whole.count }}"
          last: "{{ whole.data.rows[-1].i }}"
        code: "return {'n': n, 'c': c, 'last': last}"
""".replace("SOURCE", source),
                steps=steps,
            )
        )
        assert isinstance(done, CommandCompleted), done
        assert done.result is not None
        found = await worker.value(done.result)
        assert found["see"] == {"n": 5000, "c": 5000, "last": 4999}, source
        assert found["whole"]["media_type"] == "application/json"


async def test_a_locator_of_an_unknown_result_says_what_to_pass(worker: Bench) -> None:
    *_, done = await worker.run(
        command_of("""
  - step: s
    tool: {kind: artifact, action: get, result_ref: "noetl://execution/1/result/other/1"}
""")
    )
    assert isinstance(done, CommandFailed)
    assert done.error.kind == "reference_not_available"
    assert "_ref" in done.error.message


async def test_secrets_are_masked_in_the_payload_store(worker: Bench) -> None:
    hidden = "a-value-of-some-length"
    worker.mask.learn_secrets({"token": hidden})
    for compress in (None, "gzip"):
        kept = await put(worker, data={"x": hidden}, compress=compress)
        assert (await get(worker, result_ref=kept["ref"]))["data"] == {"x": "***"}
