"""The record of a long run: what is missing, what is still broken, what is written of it."""

from pathlib import Path

import msgspec
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


def test_what_was_cut_off_is_run_again(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    lines = [msgspec.json.encode(one) for one in (batch(0), batch(200), batch(100))]
    kept.write_bytes(b"\n".join(lines))
    done = longrun.read(kept)
    assert [one.first for one in done] == [0, 200]
    assert longrun.missing(done, 250) == [(100, 100)]
    assert longrun.read(tmp_path / "none") == []


def test_a_broken_seed_counts_until_it_is_run_well_again() -> None:
    done = [batch(0, 7, 9), batch(7, count=1, is_again=True)]
    assert longrun.again(done) == [(9, 1)]
    told = longrun.told(done)
    assert told.startswith("100 seeds (100 on abc): 2 broke an invariant, 1 of them no more;")
    assert "| lost ack | 1 |" in told
    assert "| 9 | why |" in told
