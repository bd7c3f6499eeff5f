import pytest
from rich.cells import cell_len

from noetl_cli import terminal_output

HEAD = ("ID", "NAME", "WHAT")
WIDE = "数据流"
ROWS = [("612345678901234567", "a [bold]b[/]", "x" * 90), ("2", WIDE, "short")]


def test_a_pipe_gets_whole_lines_of_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    terminal_output.print_rows(HEAD, ROWS, nothing="None.")
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "ID                  NAME          WHAT",
        f"612345678901234567  a [bold]b[/]  {'x' * 90}",
        f"2                   {WIDE}           short",
    ]


def test_a_terminal_gets_cells_folded_within_its_width(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal_output, "is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    terminal_output.print_rows(HEAD, ROWS, nothing="None.")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 3
    assert all(cell_len(line) <= 60 for line in lines)
    # Names of rows are copied from here, and data is no markup.
    assert "612345678901234567  a [bold]b[/]  x" in lines[1]
    assert sum(line.count("x") for line in lines) == 90
    # Wide characters take two places.
    last = lines[-1]
    assert cell_len(last[: last.index("short")]) == lines[0].index("WHAT")


def test_no_rows_are_said_on_the_other_channel(capsys: pytest.CaptureFixture[str]) -> None:
    terminal_output.print_rows(HEAD, [], nothing="None.")
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "None.\n")
