import pytest

from noetl_contracts import spelling


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        ("htpt", ["http", "nats"], "http"),
        ("workfow", ["workload", "workflow"], "workflow"),
        ("x", ["http"], None),
        ("ab", ["ba"], None),
        ("postgresql", ["postgres"], "postgres"),
        ("transformation_rulez", ["transformation_rules_x"], "transformation_rules_x"),
        ("completely", ["different"], None),
        ("when", ["when"], None),
        ("w" * 201, ["w" * 200], None),
    ],
)
def test_the_name_that_is_most_like_a_word_is_meant(
    word: str, known: list[str], meant: str | None
) -> None:
    assert spelling.find_nearest_word(word, known) == meant


@pytest.mark.parametrize(
    ("word", "is_slip"),
    [
        ("nxt", True),
        ("nnext", True),
        ("nezt", True),
        ("enxt", True),
        ("netx", True),
        ("next", False),
        ("nx", False),
        ("nxte_", False),
        ("txen", False),
        ("", False),
    ],
)
def test_one_edit_is_a_letter_or_a_swap_of_neighbours(word: str, *, is_slip: bool) -> None:
    assert spelling.is_one_edit_away(word, "next") is is_slip
