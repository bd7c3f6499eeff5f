"""The record of a long run: what is missing, what is still broken, what is written of it."""

from pathlib import Path

from msgspec import structs
from tests.simulation import longrun
from tests.simulation.longrun import Batch, Broken


def batch(first: int, *broken: int, count: int = longrun.BATCH, is_again: bool = False) -> Batch:
    return Batch(
        first=first,
        count=count,
        commit="abc",
        events=10,
        steps=100,
        virtual_s=3600.0,
        faults={"lost_ack": 1},
        broken=tuple(Broken(seed=seed, said="why") for seed in broken),
        is_again=is_again,
    )


def test_what_is_kept_is_not_run_again(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    assert longrun.read(kept) == []
    longrun.write(kept, longrun.joined([batch(0, count=46_600), batch(46_700)]))
    done = longrun.read(kept)
    assert [(item.first, item.count) for item in done] == [(0, 46_600), (46_700, 100)]
    assert longrun.missing(done, 46_950) == [(46_600, 100), (46_800, 100), (46_900, 50)]
    assert longrun.missing(done, 50) == []


def test_batches_that_follow_each_other_are_kept_as_one() -> None:
    other = structs.replace(batch(300), commit="def")
    again = batch(9, count=1, is_again=True)
    item, rest, last = longrun.joined([batch(100, 107), again, batch(0, 7), batch(200), other])
    assert (item.first, item.count, item.events, item.faults) == (0, 300, 30, {"lost_ack": 3})
    assert [broken.seed for broken in item.broken] == [7, 107]
    assert (rest, last) == (other, again)


def test_a_broken_seed_counts_until_it_is_run_well_again() -> None:
    done = [batch(0, 7, 9), batch(7, count=1, is_again=True)]
    assert longrun.again(done) == [(9, 1)]
    told = longrun.told(done)
    assert told.startswith("100 seeds (100 on abc): 2 broke an invariant, 1 of them no more;")
    assert "| lost ack | 1 |" in told
    assert "| 9 | why |" in told
