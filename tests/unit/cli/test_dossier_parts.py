"""What a dossier is put together from: pooled values, blocks of a page, names of files."""

from itertools import pairwise
from pathlib import Path

import pytest

from noetl_cli.audit import dossier, dossier_collector
from noetl_cli.audit.dossier import ValuePool
from noetl_cli.errors import CliError

PAGE = "<html><head></head><body><!--@parts@--></body></html>"
BLOCKS = dict.fromkeys(dossier.PARTS, "[]")


def test_values_that_moments_share_are_stored_once() -> None:
    pool = ValuePool()
    moments = [
        {"status": "RUNNING", "steps": [{"step": "a"}], "version": 1},
        {"status": "RUNNING", "steps": [{"step": "a"}, {"step": "b"}], "version": 2},
    ]
    placed = [pool.add_fields(moment) for moment in moments]
    assert pool.values == ["RUNNING", {"step": "a"}, 1, {"step": "b"}, 2]
    assert placed == [
        {"status": 0, "steps": [1], "version": 2},
        {"status": 0, "steps": [1, 3], "version": 4},
    ]


def test_values_that_only_look_alike_are_two() -> None:
    pool = ValuePool()
    assert len({pool.add_value(value) for value in (1, "1", True, None, 1.0, [1])}) == 6


@pytest.mark.parametrize(
    ("head", "count"),
    [(1, 1), (2, 2), (499, 499), (500, 500), (501, 500), (8_000, 500), (20_000, 500)],
)
def test_moments_are_all_or_evenly_spread_with_both_ends(head: int, count: int) -> None:
    versions = dossier_collector.choose_versions(head)
    assert (versions[0], versions[-1]) == (1, head)
    assert len(versions) == count
    gaps = {after - before for before, after in pairwise(versions)}
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_no_text_of_a_run_begins_a_tag() -> None:
    block = dossier.encode_block({"text": "</script><!--<script>"})
    assert "<" not in block
    page = dossier.fill_page(PAGE, "{}", {**BLOCKS, "answers": block}).decode()
    assert page.count("</script>") == 1 + len(dossier.PARTS)


def test_a_page_that_is_too_large_is_refused_with_the_largest_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dossier, "BYTES_MAX", 3_000)
    with pytest.raises(CliError, match=r"is the most: payloads 0\.0 MB") as refusal:
        dossier.fill_page(PAGE, "{}", {**BLOCKS, "payloads": "x" * 3_000})
    assert "--payload-bytes 0" in refusal.value.way_out


def test_a_file_goes_into_a_folder_or_has_its_own_name(tmp_path: Path) -> None:
    assert dossier.choose_file(None, "7") == Path("dossier-7.html")
    assert dossier.choose_file(tmp_path, "7") == tmp_path / "dossier-7.html"
    assert dossier.choose_file(tmp_path / "new", "7") == tmp_path / "new/dossier-7.html"
    named = tmp_path / "mine.HTML"
    assert dossier.choose_file(named, "7") == named
    dossier.write_page(named, b"x")
    with pytest.raises(CliError, match="is there already"):
        dossier.choose_file(named, "7")
    with pytest.raises(CliError, match="cannot be written"):
        dossier.write_page(named, b"y")
    assert named.read_bytes() == b"x"


def test_the_earlier_runs_of_a_loop_are_found_with_their_last_moments() -> None:
    loops = dossier_collector.LoopRuns()

    def run(step: str, run_id: str) -> dict[str, str]:
        return {"step": step, "run_id": run_id}

    loops.note_moment(3, [])
    loops.note_moment(5, [run("each", "1")])
    loops.note_moment(9, [run("each", "1"), run("once", "2")])
    # A run of which no moment is held between its beginning and the next one is not known.
    loops.note_moment(20, [run("each", "1"), run("once", "2"), run("each", "3"), run("each", "4")])
    loops.note_moment(30, [run("each", "1"), run("once", "2"), run("each", "5")])
    assert loops.list_earlier_runs() == [("1", ("each", 9)), ("4", ("each", 20))]
