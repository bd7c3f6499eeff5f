"""Shares of rows: each row is in one of them, wherever it lies and whatever it holds."""

from hypothesis import given
from hypothesis import strategies as st

from noetl_worker.spark.postgres.partition_ranges import cut_by_bounds, cut_pages


@given(pages=st.integers(0, 500), count=st.integers(1, 64))
def test_shares_of_pages_follow_one_another_and_the_last_has_no_end(pages: int, count: int) -> None:
    shares = list(cut_pages(pages, count))
    assert 1 <= len(shares) <= count
    if len(shares) == 1:
        assert shares == ["true"]
        return
    ends = [share.rpartition("< ")[2] for share in shares[:-1]]
    starts = [share.partition(">= ")[2].partition(" and")[0] for share in shares[1:]]
    assert ends == starts
    assert "<" not in shares[-1]
    assert ">=" not in shares[0]


def test_shares_of_a_column_hold_absent_values_once() -> None:
    assert list(cut_by_bounds('a"b', "text", ["m", "o'x"])) == [
        '(source."a""b" < \'m\'::pg_catalog.text or source."a""b" is null)',
        'source."a""b" >= \'m\'::pg_catalog.text and source."a""b" < \'o\'\'x\'::pg_catalog.text',
        "source.\"a\"\"b\" >= 'o''x'::pg_catalog.text",
    ]
    assert list(cut_by_bounds("a", "int8", [])) == ["true"]
