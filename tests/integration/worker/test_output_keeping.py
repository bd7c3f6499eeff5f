"""How a worker keeps results: every row of the table of `output`."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from msgspec import structs
from tests.support.scripted import Script, says
from tests.support.working import EXECUTION, ORGANIZATION, TENANT, Bench, command_of

from noetl_chassis.clock import SystemClock
from noetl_contracts import codec
from noetl_contracts.commands.command_work import ItemWork, StepResult
from noetl_contracts.payloads import ARROW_MEDIA_TYPE, ResultEnvelope
from noetl_contracts.requests.facts import CommandCompleted, CommandFailed
from noetl_playbook.templates.lookup import MISSING
from noetl_playbook.views import result_envelope
from noetl_playbook.views.payload_handle import PayloadHandle
from noetl_storage.arrow import encoding
from noetl_storage.memory.payload_references import MemoryPayloadReferences
from noetl_storage.memory.store import MemoryStore
from noetl_storage.payloads.garbage import GarbageAge, GarbageCollector
from noetl_storage.ports.payload_ports import Owner

MANY = (
    "return {'count': 5000, 'rows': [{'i': i, 't': 'it' * 3, 'x': {'n': [i]}} for i in range(500)],"
    " 'columns': ['i', 't', 'x'], 'long': 'x' * 300}"
)
SMALL = "return {'count': 2, 'ok': True, 'inner': {'a': [{'b': 7}]}}"


async def keep(worker: Bench, code: str, output: str, *, more: str = "") -> ResultEnvelope:
    """The envelope of a step that keeps what a function returns."""
    *_, done = await worker.run(
        command_of(f"""
  - step: s
    {more}
    tool:
      kind: python
      code: "{code}"
      output: {output}
""")
    )
    assert isinstance(done, CommandCompleted), done
    assert done.result is not None
    return done.result


def handle(envelope: ResultEnvelope) -> Any:
    """What templates see while nothing is loaded."""
    return result_envelope.view_result(
        envelope,
        execution_id=EXECUTION,
        step="s",
        run="1",
        find=result_envelope.make_payload_finder({}),
    )


async def test_small_results_travel_and_large_ones_are_stored(worker: Bench) -> None:
    inline = await keep(worker, SMALL, "{}")
    assert inline.reference is None
    stored = await keep(worker, MANY, "{inline_max_bytes: 2000, format: json}")
    assert stored.reference is not None
    found = handle(stored)
    assert isinstance(found, PayloadHandle)
    assert found.find_member("_ref") == {
        "kind": "result_ref",
        "ref": f"noetl://execution/{EXECUTION}/result/s/1",
        "store": "memory",
        "bytes": stored.reference.payload_bytes,
        "sha256": stored.reference.sha256,
        "media_type": "application/json",
        "row_count": 500,
    }
    assert found.find_member("_store") == "memory"
    assert found.find_member("_bytes") == stored.reference.payload_bytes
    assert found.find_member("columns") == ["i", "t", "x"]
    assert found.find_member("count") == 5000
    assert "long" not in found.stored.fields
    assert (await worker.value(stored))["rows"][499] == {"i": 499, "t": "ititit", "x": {"n": [499]}}


async def test_zero_always_stores_and_more_keeps_more_inline(worker: Bench) -> None:
    assert (await keep(worker, SMALL, "{inline_max_bytes: 0}")).reference is not None
    code = "return 'x' * 3000"
    assert (await keep(worker, code, "{}")).reference is not None
    assert (await keep(worker, code, "{inline_max_bytes: 4096}")).reference is None
    assert (await keep(worker, code, "{inline_max_bytes: 2000}")).reference is not None
    short = await keep(
        worker, SMALL, "{output_select: {strategy: size_threshold, threshold_kb: 0}}"
    )
    assert short.reference is not None
    # The event's own limit stands above what a playbook asks for.
    assert (await keep(worker, "return 'x' * 20000", "{inline_max_bytes: 1048576}")).reference


async def test_what_is_small_is_inline_to_the_playbook_and_still_no_part_of_its_event(
    worker: Bench,
) -> None:
    kept = await keep(worker, MANY, "{}")
    assert kept.reference is not None
    assert len(codec.encode_json(kept)) < 2048
    found = handle(kept)
    names = ("_ref", "_store", "_bytes", "_preview")
    assert [found.find_member(name) is MISSING for name in names] == [True] * 4
    assert (found.find_member("columns"), found.find_member("row_count")) == (["i", "t", "x"], 500)
    assert (await worker.value(kept))["rows"][499]["x"] == {"n": [499]}
    # As JSON: a table is for what the playbook sees as stored.
    assert kept.reference.media_type == "application/json"
    # Who speaks of the reference gets one.
    for wish in ("{select: [{path: count}]}", "{store: {compression: zstd}}", "{scope: step}"):
        assert handle(await keep(worker, MANY, wish)).find_member("_ref") is not MISSING, wish


async def test_large_tables_are_arrow_unless_they_are_to_be_json(worker: Bench) -> None:
    code = MANY.replace("500", "2500")
    kept = await keep(worker, code, "{}")
    assert kept.reference is not None
    assert kept.reference.media_type == ARROW_MEDIA_TYPE
    assert kept.reference.schema_digest is not None
    assert handle(kept).find_member("_ref")["media_type"] == ARROW_MEDIA_TYPE
    as_json = await keep(worker, code, "{format: json}")
    assert as_json.reference is not None
    assert as_json.reference.media_type == "application/json"
    assert await worker.value(kept) == await worker.value(as_json)
    # Rows that are not even stay JSON, and nobody asked for anything else: no note.
    uneven = code.replace("'t': 'it' * 3", "**({'t': 'it' * 3} if i else {})")
    other = await keep(worker, uneven, "{}")
    assert other.reference is not None
    assert other.reference.media_type == "application/json"
    assert "notes" not in other.context


@pytest.mark.parametrize(("size", "length"), [("10", 10), ("0", None), ("100000", 3002)])
async def test_a_preview_is_the_beginning(worker: Bench, size: str, length: int | None) -> None:
    kept = await keep(
        worker, "return 'ä' * 1500", f"{{preview_max_bytes: {size}, inline_max_bytes: 0}}"
    )
    preview = handle(kept).stored.preview
    if length is None:
        assert preview is None
    else:
        # A character that would be cut in half is left out.
        assert len(preview.encode()) in {length, length - 1}
        assert preview.startswith('"ää')


async def test_selected_fields_are_read_without_loading(worker: Bench) -> None:
    kept = await keep(
        worker,
        MANY,
        '{select: [{path: count}, {path: "rows[3].x.n[0]", as: third}, "$.rows[0].t",'
        ' {path: "rows[9999].i", as: nothing}]}',
    )
    assert kept.context["fields"] == {"count": 5000, "third": 3, "t": "ititit"}
    whole = await worker.value(kept)
    assert (whole["third"], whole["count"], len(whole["rows"])) == (3, 5000, 500)
    short = await keep(worker, MANY, "{output_select: [long]}")
    assert short.context["fields"]["long"] == "x" * 300
    loose = await keep(worker, MANY, "{}", more="output_select: [long]")
    assert loose.context["fields"]["long"] == "x" * 300


async def test_a_selection_that_is_too_large_says_so(worker: Bench) -> None:
    *_, done = await worker.run(
        command_of("""
  - step: s
    tool: {kind: python, code: "return {'a': 'x' * 9000}", output: {select: [{path: a}]}}
""")
    )
    assert isinstance(done, CommandFailed)
    assert (done.error.kind, done.error.code) == ("payload_too_large", "TOO_LARGE")
    assert "'a' has 9002 bytes" in done.error.message


async def test_scalars_beside_a_reference_end_at_their_limits(worker: Bench) -> None:
    code = "return {**{f'k{i}': 'x' * 200 for i in range(60)}, 'big': 'y' * 300}"
    kept = await keep(worker, code, "{}")
    fields = kept.context["fields"]
    assert "big" not in fields
    assert (
        sum(len(key) + len(codec.encode_json(value)) for key, value in fields.items()) <= 8 * 1024
    )
    assert len(fields) > 30


@pytest.mark.parametrize("how", ["gzip", "zstd"])
@pytest.mark.parametrize("form", ["json", "arrow", "parquet"])
async def test_what_is_packed_reads_back(worker: Bench, how: str, form: str) -> None:
    plain = await keep(worker, MANY, "{}")
    kept = await keep(worker, MANY, f"{{format: {form}, store: {{compression: {how}}}}}")
    assert plain.reference is not None
    assert kept.reference is not None
    stored = await worker.payloads.read_payload(kept.reference)
    assert stored[:2] in {b"\x1f\x8b", b"\x28\xb5"}
    assert kept.reference.sha256 == codec.digest_hex(stored)
    assert kept.reference.codec == how
    assert kept.reference.payload_bytes > len(stored)
    assert await worker.value(kept) == await worker.value(plain)


@pytest.mark.parametrize(
    ("form", "media_type"),
    [
        ("arrow", "application/vnd.apache.arrow.stream"),
        ("parquet", "application/vnd.apache.parquet"),
    ],
)
async def test_tables_are_kept_as_tables(worker: Bench, form: str, media_type: str) -> None:
    kept = await keep(worker, MANY, f"{{format: {form}}}")
    assert kept.reference is not None
    assert kept.reference.media_type == media_type
    assert kept.reference.schema_digest is not None
    assert kept.reference.row_count == 500
    data = await worker.payloads.read_payload(kept.reference)
    table = encoding.read_table(data)
    assert table.column("i").to_pylist() == list(range(500))
    assert table.schema.field("i").type == pa.int64()
    assert await worker.value(kept) == await worker.value(await keep(worker, MANY, "{}"))


@pytest.mark.parametrize(
    "code",
    [
        "return {'columns': ['a', 'b'], 'rows': [[i, None if i % 2 else 1.5] for i in range(300)]}",
        (
            "return {'columns': ['a'],"
            " 'rows': [{'a': v} for v in [1, 'x', None, 2**63, [1], True, 0.5] * 50]}"
        ),
        "return {'columns': ['a'], 'rows': [{'a': v} for v in [True, None, False] * 200]}",
        (
            "return {'columns': ['é', ''], 'rows': [{'é': 'ü' * 3, '': -0.0}] * 200,"
            " 'other': {'k': [1]}}"
        ),
        "return {'columns': [], 'rows': [{'a': None}] * 300}",
        "return {'columns': ['a'], 'rows': [{'a': 1e300, 'b': -2**63, 'c': '2026-01-02'}] * 100}",
    ],
)
@pytest.mark.parametrize("form", ["arrow", "parquet"])
async def test_every_value_survives_a_table(worker: Bench, code: str, form: str) -> None:
    kept = await keep(worker, code, f"{{format: {form}}}")
    plain = await keep(worker, code, "{}")
    assert kept.reference is not None
    assert kept.reference.media_type != "application/json"
    assert codec.encode_json(await worker.value(kept)) == codec.encode_json(
        await worker.value(plain)
    )


@pytest.mark.parametrize(
    "code",
    [
        "return {'a': 'x' * 2000}",
        "return {'columns': ['a'], 'rows': [{'a': 1}, {'b': 2}] * 300}",
        "return {'columns': ['a', 'a'], 'rows': [[1, 2]] * 300}",
        "return {'columns': ['a'], 'rows': [[1], [1, 2]] * 300}",
        "return ['x' * 2000]",
    ],
)
async def test_what_is_no_even_table_stays_json(worker: Bench, code: str) -> None:
    kept = await keep(worker, code, "{format: arrow}")
    assert kept.reference is not None
    assert kept.reference.media_type == "application/json"
    assert kept.context["notes"] == ["format_fallback"]
    assert await worker.value(kept) == await worker.value(await keep(worker, code, "{}"))


@pytest.mark.parametrize(
    ("store", "notes"),
    [
        ("{kind: auto}", None),
        ("{kind: memory}", None),
        ("{kind: s3}", ["store_fallback"]),
        ("{kind: kv}", ["store_fallback"]),
        ("{kind: eventlog}", ["store_fallback"]),
        ("{kind: memory, bucket: b}", ["store_fallback"]),
    ],
)
async def test_a_store_that_is_not_there_is_noted(
    worker: Bench, store: str, notes: list[str] | None
) -> None:
    kept = await keep(worker, SMALL, f"{{store: {store}}}")
    assert kept.context.get("notes") == notes
    # An explicit kind stores whatever the size; `auto` with a small result does not.
    assert (kept.reference is None) == (store == "{kind: auto}")


async def test_scope_and_ttl_are_written_beside_the_reference(worker: Bench) -> None:
    kept = await keep(worker, MANY, "{scope: workflow, store: {ttl: 2h}}")
    assert (kept.context["scope"], kept.context["ttl_s"]) == ("workflow", 7200.0)
    usual = await keep(worker, MANY, "{}")
    assert "scope" not in usual.context


async def test_a_scope_says_until_when_content_is_held(worker: Bench) -> None:
    step = await keep(worker, MANY.replace("'it'", "'of a step'"), "{scope: step}")
    assert (step.context["scope"], step.context["ttl_s"]) == ("step", 0)
    for_good = await keep(worker, MANY, "{scope: permanent, store: {ttl: 2h}}")
    assert (for_good.context["scope"], for_good.context["notes"]) == ("permanent", ["ttl_unused"])
    assert "ttl_s" not in for_good.context
    # Both histories are gone.
    collector = GarbageCollector(
        shelf=worker.payloads,  # type: ignore[arg-type]  # the store in memory is a shelf too
        references=MemoryPayloadReferences(MemoryStore(clock=SystemClock())),
        garbage_age=GarbageAge(ttl=timedelta(days=1), shelf=timedelta(days=1)),
    )
    owner = Owner(tenant_id=TENANT, organization_id=ORGANIZATION)
    for days in (400, 800):
        now = datetime.now(UTC) + timedelta(days=days)
        await collector.sweep_owner(owner, now=now, is_dry_run=False)
    assert step.reference is not None
    assert for_good.reference is not None
    assert await worker.payloads.has_payload(for_good.reference)
    assert not await worker.payloads.has_payload(step.reference)


async def test_a_result_has_one_more_name(worker: Bench) -> None:
    *_, done = await worker.run(
        command_of("""
  - step: s
    tool:
      - {name: a, kind: python, code: "return {'n': 4}", output: {as: kept}}
      - {name: b, kind: python, input: {n: "{{ kept.n }}"}, code: "return {'m': n + 1}"}
""")
    )
    assert isinstance(done, CommandCompleted)
    assert done.result is not None
    assert (await worker.value(done.result))["m"] == 5


PAGES = """
  - step: pull
    tool:
      - {name: init, kind: noop, set: {iter.page: 0}}
      - name: get
        kind: http
        url: "URL/{{ iter.page }}"
        output: {accumulate: ACCUMULATE}
        spec: {policy: {rules: [
          {else: {then: {do: continue, set: {iter.page: "{{ iter.page + 1 }}"}}}}]}}
      - name: again
        kind: noop
        result: {n: "{{ NAME }}"}
        spec: {policy: {rules: [
          {when: "{{ iter.page < PAGES }}", then: {do: jump, to: get}}, {else: {do: break}}]}}
"""


async def collected(
    worker: Bench, server: Script, accumulate: str, answers: list[Any], name: str = "accumulated"
) -> Any:
    """The last fact of a step that pages through answers, collecting them."""
    server.answers(*answers)
    text = PAGES.replace("URL", server.url).replace("ACCUMULATE", accumulate)
    text = text.replace("NAME", name).replace("PAGES", str(len(answers)))
    *_, done = await worker.run(command_of(text))
    return done


@pytest.mark.parametrize(
    ("accumulate", "bodies", "expected"),
    [
        ("{merge_path: items}", [{"items": [1]}, {"items": 2}, {"none": 0}], [1, 2]),
        ("{merge_path: 'a.b[1]'}", [{"a": {"b": [0, 5]}}, {"a": {"b": [0]}}], [5]),
        ("{strategy: concat, merge_path: t}", [{"t": "a"}, {"t": "b"}], "ab"),
        ("{strategy: concat, merge_path: t}", [{"t": [1]}, {"t": [2]}], [1, 2]),
        ("{strategy: merge}", [{"a": {"x": 1}}, {"a": {"y": 2}}], {"a": {"x": 1, "y": 2}}),
        ("{strategy: replace, merge_path: n}", [{"n": 1}, {"n": 2}], 2),
        ("true", [{"n": 1}, {"n": 2}], [{"n": 1}, {"n": 2}]),
        ("{merge_path: n, max_items: 2}", [{"n": 1}, {"n": 2}, {"n": 3}], [1, 2]),
    ],
)
async def test_pages_are_collected(
    worker: Bench, server: Script, accumulate: str, bodies: list[Any], expected: Any
) -> None:
    done = await collected(worker, server, accumulate, [says(body) for body in bodies])
    assert isinstance(done, CommandCompleted), done
    assert done.result is not None
    assert (await worker.value(done.result))["n"] == expected
    is_cut = "max_items" in accumulate
    assert done.result.context.get("notes") == (["accumulate_truncated"] if is_cut else None)


@pytest.mark.parametrize(
    ("path", "pages", "expected", "notes"),
    [
        ("itemz", 2, [], ["collected_nothing"]),
        # The path of the whole result is understood too.
        ("data.items", 2, [1, 1], None),
        ("late", 2, [7], None),
    ],
)
async def test_a_path_that_leads_nowhere_is_noted(
    worker: Bench,
    server: Script,
    path: str,
    pages: int,
    expected: list[int],
    notes: list[str] | None,
) -> None:
    bodies = [{"items": [1]}] * (pages - 1) + [{"items": [1], "late": [7]}]
    answers = [says(body) for body in bodies]
    done = await collected(worker, server, f"{{merge_path: {path}, manifest_as: n}}", answers, "n")
    assert isinstance(done, CommandCompleted), done
    assert done.notes == (notes or [])
    assert (await worker.value(done.result))["n"] == expected


@pytest.mark.parametrize(
    ("switches", "expected"),
    [
        ("on_error: true", [1, 2]),
        ("on_success: false, on_error: true", [2]),
        ("on_error: false", [1]),
    ],
)
async def test_attempts_contribute_as_they_end(
    worker: Bench, server: Script, switches: str, expected: list[int]
) -> None:
    answers = [says({"n": 1}), says({"n": 2}, status=404)]
    done = await collected(
        worker, server, f"{{merge_path: n, manifest_as: seen, {switches}}}", answers, "seen"
    )
    assert isinstance(done, CommandCompleted), done
    assert done.result is not None
    assert (await worker.value(done.result))["n"] == expected


@pytest.mark.parametrize(
    ("strategy", "bodies"), [("concat", [{"n": 1}]), ("merge", ["text"]), ("concat", [["a"], "b"])]
)
async def test_what_cannot_be_collected_fails_the_attempt(
    worker: Bench, server: Script, strategy: str, bodies: list[Any]
) -> None:
    server.answers(*[says(body) for body in bodies])
    text = PAGES.replace("URL", server.url).replace("ACCUMULATE", f"{{strategy: {strategy}}}")
    text = text.replace(
        "{else: {then: {do: continue", "{when: \"{{ output.status == 'ok' }}\", then: {do: continue"
    )
    text = text.replace('+ 1 }}"}}}}]', '+ 1 }}"}}}]')
    text = text.replace("NAME", "accumulated").replace("PAGES", str(len(bodies)))
    *_, done = await worker.run(command_of(text))
    assert isinstance(done, CommandFailed), done
    assert (done.error.kind, done.error.task) == ("schema", "get")
    assert strategy in done.error.message


async def test_secrets_are_masked_in_tables_and_previews(worker: Bench) -> None:
    hidden = "a-value-of-some-length"
    worker.mask.learn_secrets({"token": hidden})
    code = f"return {{'columns': ['a'], 'rows': [{{'a': '{hidden}'}}] * 200, 't': '{hidden}'}}"
    for output in ("{}", "{format: arrow, store: {compression: zstd}}", "{format: parquet}"):
        kept = await keep(worker, code, output)
        assert hidden not in str(kept.context)
        assert (await worker.value(kept))["rows"][0] == {"a": "***"}


async def test_a_template_may_not_load_without_end(worker: Bench) -> None:
    kept = await keep(worker, MANY, "{}")
    assert kept.reference is not None
    huge = structs.replace(kept.reference, payload_bytes=300 * 1024**2)
    steps = {"load": StepResult(status="ok", result=structs.replace(kept, reference=huge))}
    *_, done = await worker.run(
        command_of(
            """
  - step: s
    tool: {kind: noop, result: "{{ load.rows[0] }}"}
""",
            steps=steps,
        )
    )
    assert isinstance(done, CommandFailed)
    assert (done.error.kind, done.error.code) == ("payload_too_large", "TOO_LARGE")
    assert "output.select" in done.error.message


EPOCHS = """
  - step: page
    tool: {kind: http, url: "URL"}
    output: {accumulate: {merge_path: items, manifest_as: all}}
"""


async def test_what_is_accumulated_on_a_step_goes_on_in_its_next_run(
    worker: Bench, server: Script
) -> None:
    server.answers(says({"items": [1]}), says({"items": [2, 3]}), says({"items": [4]}))
    steps: dict[str, StepResult] = {}
    for expected in ([1], [1, 2, 3], [1, 2, 3, 4]):
        *_, done = await worker.run(command_of(EPOCHS.replace("URL", server.url), steps=steps))
        assert isinstance(done, CommandCompleted), done
        assert done.result is not None
        assert (await worker.value(done.result))["all"] == expected
        steps = {"page": StepResult(status="ok", result=done.result)}


async def test_an_output_block_on_a_step_of_several_tasks_is_that_of_the_last(
    worker: Bench,
) -> None:
    text = """
  - step: s
    tool:
      - {name: one, kind: python, code: "result = {'a': 1}"}
      - {name: two, kind: python, code: "result = {'deep': {'b': 2}}"}
    output: {inline_max_bytes: 0, select: [{path: deep.b}]}
"""
    *_, done = await worker.run(command_of(text))
    assert isinstance(done, CommandCompleted), done
    assert done.result is not None
    assert done.result.context["fields"]["b"] == 2


async def test_an_answer_over_http_is_stored_with_its_headers(
    worker: Bench, server: Script
) -> None:
    server.answers(says({"a": 1}, headers={"X-Any": "1"}))
    text = """
  - step: s
    tool: {kind: http, url: "URL", output: {inline_max_bytes: 0, preview_max_bytes: 2000}}
"""
    *_, done = await worker.run(command_of(text.replace("URL", server.url)))
    assert isinstance(done, CommandCompleted), done
    assert done.result is not None
    assert "X-Any" in done.result.context["preview"]


@pytest.mark.parametrize(
    ("output", "at", "is_stored"),
    [
        ("null", "tool", True),
        ("{preview_max_bytes: 10}", "tool", True),
        ("{inline_max_bytes: 65536}", "tool", False),
        ("{inline_max_bytes: 65536}", "step", False),
        ("{preview_max_bytes: 10}", "step", True),
    ],
)
async def test_the_executions_bound_holds_where_a_step_has_none(
    worker: Bench, output: str, at: str, *, is_stored: bool
) -> None:
    text = f"""
  - step: s
    {f"output: {output}" if at == "step" else ""}
    tool:
      kind: python
      code: "return {{'t': 'x' * 200}}"
      {f"output: {output}" if at == "tool" else ""}
"""
    *_, done = await worker.run(command_of(text, defaults={"inline_max_bytes": 100}))
    assert isinstance(done, CommandCompleted), done
    assert done.result is not None
    assert (done.result.reference is not None) == is_stored


@pytest.mark.parametrize(
    ("collect", "output", "is_stored"),
    [("none", "", False), ("all", "", True), ("none", "output: {select: [{path: count}]}", True)],
)
async def test_what_an_item_gives_is_stored_only_for_somebody(
    worker: Bench, collect: str, output: str, *, is_stored: bool
) -> None:
    """A loop that keeps no results has no reader of them, unless the step speaks of its output."""
    *_, done = await worker.run(
        command_of(
            f"""
  - step: s
    {output}
    loop: {{in: [1], iterator: i, spec: {{mode: parallel, collect: {collect}}}}}
    tool: {{kind: noop, result: {{count: 1, long: {"x" * 3000}}}}}
""",
            work=ItemWork(index=0, total=1, item=1),
        )
    )
    assert isinstance(done, CommandCompleted)
    assert (done.result.reference is not None) is is_stored
    assert len(codec.encode_json(done)) < 2048
