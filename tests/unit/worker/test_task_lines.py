"""Lines of output: cut at their ends, bounded, and masked before anything else sees them."""

from collections.abc import Sequence

import pytest

from noetl_contracts.log_chunks import LogSource
from noetl_worker.domain.secret_mask import SecretMask
from noetl_worker.sandbox.task_output import END, MARK, OutputRecord, encode_record
from noetl_worker.task_logs import task_log
from noetl_worker.task_logs.task_log import (
    LINE_CHARACTERS_MAX,
    RAW_BYTES_MAX,
    LineBuffer,
    RawLine,
    TaskLog,
    build_line_texts,
)
from noetl_worker.tools.python.process import OutputParser

SECRET = "hunter2-hunter2-hunter2"  # noqa: S105 - that is what it stands for
SOURCE = LogSource(task="t", unit="step", task_attempt=1)


class Lines:
    """Takes lines as a journal does."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, str]] = []

    def add_lines(
        self, lines: Sequence[RawLine], stream: str, level: str, source: LogSource
    ) -> None:
        self.lines += [(stream, level, text) for text in build_line_texts(lines, SecretMask())]


def log_of(lines: Lines) -> TaskLog:
    return TaskLog(SOURCE, lines)  # type: ignore[arg-type]  # it is added to alone


def knowing(*secrets: str) -> SecretMask:
    mask = SecretMask()
    mask.learn_secrets(list(secrets))
    return mask


def text_of(line: RawLine, mask: SecretMask) -> str:
    (text,) = build_line_texts([line], mask)
    return text


def split(*pieces: bytes) -> list[bytes]:
    buffer = LineBuffer()
    lines = [line for piece in pieces for line in buffer.feed_bytes(piece)]
    return [line.data for line in (*lines, *buffer.take_rest())]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_lines_are_the_same_however_their_bytes_come(size: int) -> None:
    data = "eins\n\nzwei ä€\nlast".encode()
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    assert split(*pieces) == [b"eins", b"", "zwei ä€".encode(), b"last"]


def test_a_secret_that_comes_in_two_pieces_is_masked() -> None:
    (line,) = split(f"token={SECRET[:9]}".encode(), f"{SECRET[9:]} sent".encode())
    assert text_of(RawLine(data=line), knowing(SECRET)) == "token=*** sent"


@pytest.mark.parametrize("before", range(LINE_CHARACTERS_MAX - 40, LINE_CHARACTERS_MAX + 5))
def test_a_secret_across_the_place_of_the_cut_shows_no_part_of_itself(before: int) -> None:
    data = (b"x" * before) + SECRET.encode() + b"y" * 100
    text = text_of(RawLine(data=data), knowing(SECRET))
    assert SECRET[:4] not in text
    assert len(text) < LINE_CHARACTERS_MAX + 100


@pytest.mark.parametrize("part", range(1, len(SECRET)))
def test_a_secret_across_the_end_of_what_is_held_shows_no_part_of_itself(part: int) -> None:
    # Many secrets before it, so that what is left after masking is shorter than a line may be.
    head = (SECRET * (RAW_BYTES_MAX // len(SECRET)))[: RAW_BYTES_MAX - 1000 - part]
    head = head[: len(head) // len(SECRET) * len(SECRET)]
    data = head.encode().ljust(RAW_BYTES_MAX - part, b"-") + SECRET.encode()
    (line,) = (RawLine(data=data[:RAW_BYTES_MAX], left_out=len(data) - RAW_BYTES_MAX),)
    text = text_of(line, knowing(SECRET))
    assert SECRET[:1] not in text.replace("the line has", "")
    assert "[cut: the line has" in text


def test_each_line_of_a_secret_of_several_is_masked_however_short() -> None:
    mask = knowing("first-line\nsecond\nthird-line-of-the-key")
    texts = [text_of(RawLine(data=line), mask) for line in split(b"first-line\nsecond\r\nfourth\n")]
    assert texts == ["***", "***", "fourth"]


def test_lines_that_are_read_together_are_masked_as_each_alone() -> None:
    mask = knowing(SECRET, "first-line\nsecond\nthird-line-of-the-key")
    data = [b"clear", f"a {SECRET} b".encode(), b"  second\r", b"not second", b"x\r", b"\xff"]
    lines = [RawLine(data=line) for line in data]
    together = build_line_texts(lines, mask)
    assert together == [text_of(line, mask) for line in lines]
    assert together == ["clear", "a *** b", "***", "not second", "x", "\ufffd"]
    assert build_line_texts([lines[0], lines[4]], mask) == ["clear", "x"]


def test_a_line_that_does_not_end_takes_a_bounded_room_and_says_its_length() -> None:
    lines = Lines()
    log = log_of(lines)
    for _ in range(40):
        log.write_output("stdout", b"x" * 10_000)
    assert lines.lines == []
    log.write_output("stdout", b"\nnext\n")
    long, after = lines.lines
    assert long[2].endswith("[cut: the line has 400000 bytes]")
    assert len(long[2]) < LINE_CHARACTERS_MAX + 50
    assert after[2] == "next"


def test_a_log_is_cut_at_its_bound_and_says_so_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_log, "TRY_BYTES_MAX", 100)
    lines = Lines()
    log = log_of(lines)
    for _ in range(10):
        log.write_output("stdout", b"x" * 19 + b"\n")
    log.add_line("logging", "lost", level="error")
    log.finish_lines()
    assert [line[0] for line in lines.lines] == ["stdout"] * 5 + ["notice"] * 2
    assert "is cut here: it holds 100 bytes" in lines.lines[5][2]
    assert "105 more bytes are left out" in lines.lines[6][2]


def test_what_has_no_end_of_line_is_kept_when_a_try_ends() -> None:
    lines = Lines()
    log = log_of(lines)
    log.write_output("stdout", b"half")
    log.write_output("stderr", b"other half")
    log.finish_lines()
    assert lines.lines == [("stdout", "", "half"), ("stderr", "", "other half")]


def test_records_and_the_bytes_of_other_programs_are_told_apart() -> None:
    data = b"".join(
        (
            encode_record(OutputRecord("stdout", "one\ntw")),
            b"from a program\nwithout an end",
            encode_record(OutputRecord("stderr", "err\n")),
            encode_record(OutputRecord("logging", "two\nlines", "warning")),
            encode_record(OutputRecord("stdout", "o\n")),
            MARK + b"no record\n",
            encode_record(OutputRecord(END)),
        )
    )
    for size in (1, 5, len(data)):
        lines, parser, ended = Lines(), OutputParser("stdout"), []
        log = log_of(lines)
        ended += [parser.feed_bytes(data[at : at + size], log) for at in range(0, len(data), size)]
        log.finish_lines()
        assert [line for line in lines.lines if line[0] != "stdout"] == [
            ("stderr", "", "err"),
            ("logging", "warning", "two"),
            ("logging", "warning", "lines"),
        ]
        assert lines.lines[0] == ("stdout", "", "one")
        assert "without an endo" in lines.lines[-2][2]
        assert lines.lines[-1][2] == "no record"
        assert ended.count(True) == 1
        assert ended[-1]


def test_records_that_come_together_are_read_as_each_alone() -> None:
    records = [
        *(OutputRecord("stdout", f"{number} ä\x1e\n") for number in range(3)),
        OutputRecord("stderr", "err\n"),
        OutputRecord("logging", "said", "info"),
        OutputRecord("stdout", "last"),
        OutputRecord(END),
    ]
    data = b"".join(map(encode_record, records))
    shown, ends = [], []
    for size in (1, len(data)):
        lines, parser = Lines(), OutputParser("stdout")
        log = log_of(lines)
        ends.append(
            [
                parser.feed_bytes(data[at : at + size], log) for at in range(0, len(data), size)
            ].count(True)
        )
        log.finish_lines()
        shown.append(lines.lines)
    assert shown[0] == shown[1]
    assert ends == [1, 1]
    assert [line[2] for line in shown[0]] == [
        *("0 ä\x1e", "1 ä\x1e", "2 ä\x1e"),
        *("err", "said", "last"),
    ]
