"""A dossier: one file from the disk, which shows a run and finds what was done to it."""

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect
from tests.console.conftest import (
    HOSTILE,
    WAIT_MS,
    Watched,
    a_playbook,
    is_over,
    type_noetl,
    watch_page,
)
from tests.console.test_console_pages import AXE_OPTIONS, PICTURES, Theme
from tests.console.test_details_of_pages import ROUNDS, list_versions, run_to_its_end
from tests.support.asking import http
from tests.support.polling import PATIENCE_S
from tests.support.servers import wait_until
from tests.support.stack import Stack

from noetl_contracts import codec

PARCELS = a_playbook(
    "parcels",
    """\
    - step: load
      tool:
        kind: python
        code: |
          for number in range(30):
              print(f"parcel {number} read")
          result = {"parcels": [{"number": n, "text": "weight" * 12} for n in range(60)]}
      next: {arcs: [{step: each}]}
    - step: each
      loop: {in: "{{ load.parcels[:6] }}", iterator: parcel, spec: {mode: parallel}}
      tool: {kind: noop, result: {number: "{{ iter.parcel.number }}"}}
      set: {ctx.seen: "{{ load.parcels | length }}"}
    """,
)
COUNTS = a_playbook(
    "counts",
    """\
    - step: start
      tool: {kind: noop, result: {number: "{{ ctx.number | default(0) + 1 }}"}}
      set: {ctx.number: "{{ start.number }}"}
      next: {arcs: [{step: start, when: "{{ start.number < 3 }}"}]}
    """,
)
ALL_WHOLE = "All is as it was sealed"
Dossiers = dict[str, Path]
Values = dict[str, Any]


@pytest.fixture(scope="session")
def dossiers(
    stack: Stack, runs: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Dossiers:
    """The dossier of a run that completed, of one that failed, and of a hostile one."""
    api = stack.url("api")
    answer = http.post(f"{api}/api/catalog/register", json={"content": PARCELS})
    assert answer.is_success, answer.text
    parcels = stack.execute("demo/parcels", key="parcels")
    wait_until(partial(is_over, api, parcels), timeout_s=PATIENCE_S, what="parcels ends")
    folder = tmp_path_factory.mktemp("dossiers")
    return {
        name: export(stack, run, folder / f"{name}.html")
        for name, run in {**runs, "parcels": parcels}.items()
        if name in ("parcels", "orders", "struck")
    }


def export(stack: Stack, run: str, file: Path) -> Path:
    type_noetl(stack, "evidence", "export", run, "--html", "--output", str(file))
    return file


OpenFile = Callable[..., Page]


@pytest.fixture
def open_file(browser: Browser) -> Iterator[OpenFile]:
    """Opens files from the disk; each page is checked at the end of its test."""
    contexts: list[BrowserContext] = []
    watched_pages: list[Watched] = []

    def open_watched(file: Path, address: str = "", **options: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        contexts.append(context)
        watched = Watched(context.new_page(), file.as_uri())
        watched.page.set_default_timeout(WAIT_MS)
        watch_page(watched)
        watched_pages.append(watched)
        watched.page.goto(f"{file.as_uri()}{address}")
        watched.page.locator(".good, .bad").first.wait_for()
        return watched.page

    yield open_watched
    for watched in watched_pages:
        watched.check()
    for context in contexts:
        context.close()


def read_part(text: str, name: str) -> Any:
    """A part of a dossier, as its page has it."""
    found = re.search(rf'id="dossier-{name}">(.*?)</script>', text)
    assert found is not None, name
    return json.loads(found[1])


def change_part(file: Path, name: str, change: Callable[[Any], None], *, reseal: bool) -> Path:
    """What somebody does who edits the file; with `reseal` the seal too."""
    text = file.read_text()
    value = read_part(text, name)
    change(value)
    text = put_part(text, name, value)
    if reseal:
        block = codec.encode_text(value).replace("<", "\\u003c")
        seal = read_part(text, "seal")
        seal["parts"][name] = {"sha256": codec.digest_hex(block.encode()), "bytes": len(block)}
        text = put_part(text, "seal", seal)
    changed = file.with_name(f"changed-{name}-{len(list(file.parent.iterdir()))}.html")
    changed.write_text(text)
    return changed


def put_part(text: str, name: str, value: Any) -> str:
    block = codec.encode_text(value).replace("<", "\\u003c")
    pattern = rf'(id="dossier-{name}">).*?(</script>)'
    return re.sub(pattern, lambda found: f"{found[1]}{block}{found[2]}", text, count=1)


@pytest.mark.parametrize("name", ["parcels", "orders", "struck"])
def test_a_command_checks_a_dossier_as_its_page_does(
    stack: Stack, dossiers: Dossiers, name: str
) -> None:
    whole = json.loads(type_noetl(stack, "evidence", "check", str(dossiers[name]), "--json"))
    assert whole["findings"] == []
    assert whole["events"] == whole["seal"]["head"]["version"]
    changed = change_part(dossiers[name], "events", lambda events: events.pop(2), reseal=True)
    with pytest.raises(CalledProcessError) as refused:
        type_noetl(stack, "evidence", "check", str(changed))
    assert refused.value.returncode == 1
    assert "version 3 was removed" in refused.value.stdout


@pytest.mark.parametrize(
    ("name", "status"), [("parcels", "completed"), ("orders", "failed"), ("struck", "failed")]
)
def test_a_dossier_opens_from_the_disk_and_all_of_it_is_whole(
    open_file: OpenFile, dossiers: Dossiers, name: str, status: str
) -> None:
    page = open_file(dossiers[name])
    expect(page.get_by_text(ALL_WHOLE)).to_be_visible()
    expect(page.locator(".facts .badge").first).to_have_text(status)
    expect(page.locator(".svelte-flow__node").first).to_be_visible()


def test_every_page_of_the_run_shows_what_it_shows_in_the_console(
    open_file: OpenFile, dossiers: Dossiers
) -> None:
    page = open_file(dossiers["parcels"])
    expect(page.get_by_role("heading", name="Steps")).to_be_visible()
    page.get_by_role("link", name="Items").click()
    items = page.get_by_role("region", name="Items", exact=True)
    expect(items.locator("tbody tr")).to_have_count(6)
    page.get_by_label("State").select_option("failed")
    expect(page.get_by_text("No item is in this state.")).to_be_visible()
    page.get_by_role("link", name="Logs").click()
    expect(page.get_by_text("parcel 29 read")).to_be_visible()
    page.get_by_label("Search the lines").fill("parcel 7 ")
    expect(page.get_by_text("1 of 30 lines")).to_be_visible()
    page.get_by_role("link", name="Events").click()
    page.get_by_label("Filter events").fill("playbook.completed")
    page.get_by_role("button", name=re.compile("playbook.completed")).click()
    expect(page.get_by_role("region", name="The event")).to_contain_text("playbook.completed")
    page.get_by_role("link", name="Payloads").click()
    page.get_by_role("button", name="load", exact=True).click()
    expect(page.get_by_text("weightweight").first).to_be_visible()
    page.get_by_role("link", name="Context").click()
    expect(page.get_by_role("region", name="Variables as JSON")).to_contain_text('"seen": 60')
    for absent in ("Compare", "Counterfactual", "Run again"):
        expect(page.get_by_text(absent, exact=True)).to_have_count(0)


def test_the_slider_shows_every_moment(open_file: OpenFile, dossiers: Dossiers) -> None:
    page = open_file(dossiers["parcels"])
    slider = page.get_by_role("slider", name="Version of the history")
    last = int(slider.get_attribute("max") or 0)
    page.get_by_role("button", name="One event back").click()
    expect(page.get_by_text(f"as it was after event {last - 1},")).to_be_visible()
    slider.fill("4")
    expect(page.get_by_text("as it was after event 4,")).to_be_visible()
    expect(page.locator(".facts .badge").first).to_have_text("running")
    page.reload()
    expect(page.get_by_text("as it was after event 4,")).to_be_visible()
    page.get_by_role("button", name="Latest").click()
    expect(page.locator(".facts .badge").first).to_have_text("completed")


def test_a_step_that_ran_again_shows_at_each_moment_the_result_of_then(
    open_file: OpenFile, stack: Stack, tmp_path: Path
) -> None:
    api = stack.url("api")
    answer = http.post(f"{api}/api/catalog/register", json={"content": COUNTS})
    assert answer.is_success, answer.text
    run = stack.execute("demo/counts", key="counts")
    wait_until(partial(is_over, api, run), timeout_s=PATIENCE_S, what="counts ends")
    file = export(stack, run, tmp_path / "counts.html")
    page = open_file(file)
    page.get_by_role("link", name="Payloads").click()
    page.get_by_role("button", name="start", exact=True).click()
    preview = page.get_by_role("region", name="start", exact=True)
    expect(preview).to_contain_text(re.compile(r'"number": 3'))
    slider = page.get_by_role("slider", name="Version of the history")
    exits = [
        number
        for number, event in enumerate(read_part(file.read_text(), "events"), start=1)
        if '"event_type":"step.exit"' in event["text"]
    ]
    assert len(exits) == 3
    for number, version in enumerate(exits, start=1):
        slider.fill(str(version))
        expect(page.get_by_text(f"as it was after event {version},")).to_be_visible()
        expect(preview).to_contain_text(re.compile(rf'"number": {number}'))
    PICTURES.mkdir(parents=True, exist_ok=True)
    slider.fill(str(exits[0]))
    expect(preview).to_contain_text(re.compile(r'"number": 1'))
    for width in (1280, 360):
        page.set_viewport_size({"width": width, "height": 900})
        page.screenshot(path=PICTURES / f"dossier-past-{width}.png", full_page=True)


def test_a_loop_that_ran_again_shows_at_each_moment_the_items_of_then(
    open_file: OpenFile, stack: Stack, tmp_path: Path
) -> None:
    run = run_to_its_end(stack, ROUNDS, "dossier-rounds")
    file = export(stack, run, tmp_path / "rounds.html")
    page = open_file(file, f"#/runs/{run}/items?step=each")
    rows = page.get_by_role("region", name="Each item").locator("tbody tr")
    expect(rows).to_have_count(4)
    slider = page.get_by_role("slider", name="Version of the history")
    first, second = list_versions(stack, run, "loop.done")
    slider.fill(str(first))
    expect(page.get_by_text(f"as it was after event {first},")).to_be_visible()
    expect(rows).to_have_count(2)
    expect(rows.get_by_text("completed")).to_have_count(2)
    begun = list_versions(stack, run, "loop.started")[0]
    slider.fill(str(begun))
    expect(page.get_by_text(f"as it was after event {begun},")).to_be_visible()
    expect(rows).to_have_count(2)
    expect(rows.get_by_text("completed")).to_have_count(0)
    slider.fill(str(second))
    expect(rows.get_by_text("completed")).to_have_count(4)


def test_payloads_are_listed_with_the_events_that_name_them(
    open_file: OpenFile, dossiers: Dossiers
) -> None:
    page = open_file(dossiers["parcels"])
    page.get_by_text("Payloads", exact=True).first.click()
    rows = page.get_by_role("region", name="Payloads and their digests").locator("tbody tr")
    held = read_part(dossiers["parcels"].read_text(), "payloads")
    assert held
    expect(rows).to_have_count(len(held))
    expect(rows.first.locator("td").nth(2)).to_have_text("whole")


def change_event(events: list[Values]) -> None:
    events[4]["text"] = events[4]["text"].replace('"producer":"', '"producer":"x')


def change_checksum(events: list[Values]) -> None:
    events[4]["checksum"] = "0" * 64


def drop_event(events: list[Values]) -> None:
    del events[4]


def drop_last_events(events: list[Values]) -> None:
    del events[-2:]


def swap_events(events: list[Values]) -> None:
    events[4], events[5] = events[5], events[4]


def change_payload(payloads: list[Values]) -> None:
    content = payloads[0]["content"]
    payloads[0]["content"] = ("B" if content[8] != "B" else "C").join((content[:8], content[9:]))


def spoil_payload(payloads: list[Values]) -> None:
    payloads[0]["content"] = "?"


def drop_payload(payloads: list[Values]) -> None:
    payloads[0]["content"] = None


def drop_entry(payloads: list[Values]) -> None:
    del payloads[0]


def change_log(logs: list[Values]) -> None:
    logs[0]["content"] = codec.decode_json(json.dumps(logs[0]["content"]))[:-8] + "AAAAAAA="


DAMAGE: dict[str, tuple[str, Callable[[Any], None], str]] = {
    "event": ("events", change_event, "event 5, .*: It was changed"),
    "checksum": ("events", change_checksum, "event 5, .*: Its checksum was changed"),
    "event left out": ("events", drop_event, "event 5: Taken out"),
    "end left out": ("events", drop_last_events, r"events \d+ to \d+: Taken out"),
    "events swapped": ("events", swap_events, "It stands behind version 6"),
    "payload": ("payloads", change_payload, "payload .*: Its bytes were changed"),
    "payload no base64": ("payloads", spoil_payload, "payload .*: Its bytes were changed"),
    "payload without bytes": ("payloads", drop_payload, "payload .*: It is not here"),
    "payload left out": ("payloads", drop_entry, "payload .*: It was taken out"),
    "log": ("logs", change_log, "log logs/.*: Its lines were changed"),
}


@pytest.mark.parametrize("reseal", [False, True], ids=["", "sealed anew"])
@pytest.mark.parametrize("what", DAMAGE)
def test_what_was_changed_is_red_and_named(
    open_file: OpenFile, dossiers: Dossiers, what: str, *, reseal: bool
) -> None:
    part, change, message = DAMAGE[what]
    page = open_file(change_part(dossiers["parcels"], part, change, reseal=reseal))
    expect(page.get_by_text("not as sealed")).to_be_visible()
    findings = page.locator(".findings li")
    expect(findings.filter(has_text=re.compile(message))).to_have_count(1)
    of_part = findings.filter(has_text=f"part {part}: This part was changed")
    expect(of_part).to_have_count(0 if reseal else 1)
    expect(page.get_by_text(ALL_WHOLE)).to_have_count(0)
    assert is_red(page, ".findings")


def is_red(page: Page, place: str) -> bool:
    color = page.locator(place).evaluate("element => getComputedStyle(element).color")
    red, green, blue = (int(number) for number in re.findall(r"\d+", color)[:3])
    return red > green + 60 and red > blue + 60


@pytest.mark.parametrize("part", ["moments", "answers"])
def test_a_recorded_answer_that_was_changed_is_named_by_its_part(
    open_file: OpenFile, dossiers: Dossiers, part: str
) -> None:
    text = dossiers["parcels"].read_text()
    changed = dossiers["parcels"].with_name(f"answer-{part}.html")
    changed.write_text(put_part(text, part, {**read_part(text, part), "more": {}}))
    page = open_file(changed)
    expect(page.locator(".findings li")).to_have_text([re.compile(f"part {part}: .*was changed")])


@pytest.mark.parametrize("part", ["seal", "events", "moments"])
def test_a_part_that_is_no_json_is_named_and_breaks_no_page(
    open_file: OpenFile, dossiers: Dossiers, part: str
) -> None:
    text = dossiers["parcels"].read_text()
    broken = dossiers["parcels"].with_name(f"broken-{part}.html")
    broken.write_text(text.replace(f'id="dossier-{part}">', f'id="dossier-{part}">,', 1))
    page = open_file(broken)
    expect(page.locator(".findings li").filter(has_text="cannot be read").first).to_be_visible()


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("events", {"a": 1}),
        ("events", [{"text": 5}]),
        ("payloads", [None]),
        ("logs", "text"),
        ("moments", {"pool": [], "moments": {"1": None}}),
        ("moments", {"pool": [], "moments": {"1": {"status": 7}}}),
        ("answers", [1]),
        ("seal", {"format": "other"}),
    ],
)
def test_a_part_of_another_shape_never_leaves_an_empty_page(
    open_file: OpenFile, dossiers: Dossiers, part: str, value: Any
) -> None:
    text = put_part(dossiers["parcels"].read_text(), part, value)
    changed = dossiers["parcels"].with_name(f"shape-{part}.html")
    changed.write_text(text)
    page = open_file(changed)
    expect(page.get_by_text("not as sealed")).to_be_visible()
    expect(page.locator("h1")).to_have_count(1)


def test_texts_of_a_run_stay_texts(open_file: OpenFile, dossiers: Dossiers) -> None:
    assert "window.struck" in dossiers["struck"].read_text()
    run = read_part(dossiers["struck"].read_text(), "seal")["execution_id"]
    parts = ("", "items", "logs", "events", "payloads?step=speak", "context")
    for part in parts:
        page = open_file(dossiers["struck"], f"#/runs/{run}/{part}")
        expect(page.get_by_text(ALL_WHOLE)).to_be_visible()
        assert page.evaluate("window.struck") is None
    page = open_file(dossiers["struck"], f"#/runs/{run}/logs")
    expect(page.get_by_text(HOSTILE[:40]).first).to_be_visible()


def test_a_script_that_is_put_into_the_file_does_not_run(
    browser: Browser, dossiers: Dossiers
) -> None:
    text = dossiers["parcels"].read_text()
    changed = dossiers["parcels"].with_name("with-script.html")
    changed.write_text(text.replace("</body>", "<script>window.struck = 1</script></body>", 1))
    page = browser.new_page()
    refused: list[str] = []
    page.on("console", lambda message: refused.append(message.text))
    page.goto(changed.as_uri())
    page.locator(".good, .bad").first.wait_for(timeout=WAIT_MS)
    assert page.evaluate("window.struck") is None
    assert any("Content Security Policy" in text for text in refused), refused
    page.close()


def test_without_webcrypto_nothing_is_called_whole(browser: Browser, dossiers: Dossiers) -> None:
    context = browser.new_context()
    context.add_init_script("Object.defineProperty(window, 'crypto', {value: {}})")
    page = context.new_page()
    page.goto(dossiers["parcels"].as_uri())
    expect(page.get_by_text("Not checked")).to_be_visible(timeout=WAIT_MS)
    expect(page.get_by_text("offers no WebCrypto")).to_be_visible()
    expect(page.get_by_text(ALL_WHOLE)).to_have_count(0)
    context.close()


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 1280), ("dark", 360)])
def test_a_dossier_is_for_everybody_and_fits(
    open_file: OpenFile, dossiers: Dossiers, axe_source: str, theme: Theme, width: int
) -> None:
    changed = change_part(dossiers["parcels"], "events", change_event, reseal=False)
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name, file in {"whole": dossiers["parcels"], "red": changed, **dossiers}.items():
        page = open_file(
            file, color_scheme=theme, viewport={"width": width, "height": 800}, bypass_csp=True
        )
        expect(page.locator(".svelte-flow__node").first).to_be_visible()
        for summary in page.locator("summary").all():
            summary.click()
        page.evaluate(axe_source)
        found: Any = page.evaluate("options => axe.run(document, options)", AXE_OPTIONS)
        broken = [(item["id"], item["nodes"][0]["html"]) for item in found["violations"]]
        assert broken == [], name
        page.screenshot(path=PICTURES / f"dossier-{name}-{theme}-{width}.png", full_page=True)
        assert not page.evaluate("document.documentElement.scrollWidth > innerWidth"), name
