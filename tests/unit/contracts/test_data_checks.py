"""What checks have found in several parts of the same work is one report a check."""

from noetl_contracts.commands.data_checks import CheckReport, add_reports


def build_report(check: str, failed_rows: int | None, *, measured: object = None) -> CheckReport:
    is_met = failed_rows == 0 if measured is None else failed_rows is None and measured != "old"
    return CheckReport(
        dataset="orders", check=check, is_met=is_met, failed_rows=failed_rows, measured=measured
    )


def test_rows_that_break_a_check_are_added_up() -> None:
    first = (build_report("not_null id", 0), build_report("unique id", 2))
    second = (build_report("not_null id", 3), build_report("unique id", 0))
    assert add_reports(first, second) == (
        build_report("not_null id", 3),
        build_report("unique id", 2),
    )


def test_of_what_is_measured_the_value_that_breaks_the_check_is_told() -> None:
    old, young = (build_report("freshness at", None, measured=value) for value in ("old", "young"))
    assert not old.is_met
    assert add_reports((old,), (young,)) == (old,)
    assert add_reports((young,), (old,)) == (old,)
    assert add_reports((young,), (young,)) == (young,)


def test_a_check_of_one_part_alone_is_kept() -> None:
    one, other = build_report("not_null id", 1), build_report("not_null name", 0)
    assert add_reports((one,), (other,)) == (one, other)
    assert add_reports((), (one,)) == (one,)
    assert add_reports((one,), ()) == (one,)
