"""The soak's section of the page."""

from typing import Any

from tests.load.plots import DRAWING
from tests.load.telling import counts, on, table
from tests.load.trend import GROWTH_SHARE_MAX, WARM_SHARE, is_service


def section(one: dict[str, Any]) -> str:
    """Write what was asked for, what became of it, and how memory moved meanwhile."""
    asked, right = sum(one["asked"].values()), sum(one["right"].values())
    audit = one["audit"]
    return f"""## A soak of {one["minutes"]:g} minutes

Two workers; a new execution every {1 / one["each_s"]:g} s, in turn {
        counts(one["asked"])
    }; a run of PFT A, 1 x 50, every four
minutes. {on(one)}

![Memory of each process over the time]({DRAWING})

{
        table(
            ("what", "found"),
            [
                ("executions asked for", asked),
                ("ended as they must, with the right variables or the right error", right),
                ("otherwise", len(one["wrong"])),
                ("runs of PFT, verified", one["pft"]),
                ("executions in all, children with them", audit["executions"]),
                ("events", audit["events"]),
                ("histories replayed: chain, fold and every row the same", audit["ok"]),
                ("of these also compared at places on the way", one["compared"]),
                ("processes that had to be started again", sum(one["restarts"].values())),
                ("requests that were put off because 60 were open", one["held_back"]),
            ],
        )
    }

A line is fitted to the last {
        1 - WARM_SHARE:.0%} of the time; memory is flat if it gains less than {
        GROWTH_SHARE_MAX:.0%} of its
median in an hour. Memory is what a process and its children hold for themselves alone (USS), in MiB: their share of what
is shared moves with whatever else runs on the machine. Servers
hold in memory what they store, up to bounds of their own, and are not judged.{_note(one)}

{
        table(
            (
                "process",
                "median",
                "least",
                "most",
                "MiB an hour",
                "of the median",
                "flat",
                "files open, most",
            ),
            _rows(one),
        )
    }

What is stored and passed on:

{table(("what", "first", "last", "an hour"), _stores(one))}

An event takes {
        one[
            "bytes_per_event"
        ]:,} bytes of the ledger's database, with the rows and indexes of every read model.
"""


def _note(one: dict[str, Any]) -> str:
    """Tell what was found out about this run afterwards."""
    return f"\n\n{one['note']}" if "note" in one else ""


def _rows(one: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [
        (
            name,
            trend["median"],
            trend["least"],
            trend["most"],
            trend["slope_h"],
            f"{trend['share_h']:.1%}",
            _verdict(name, is_flat=trend["is_flat"]),
            one["files"][name],
        )
        for name, trend in one["memory"].items()
    ]


def _verdict(name: str, *, is_flat: bool) -> str:
    if not is_service(name):
        return "a server"
    return "yes" if is_flat else "**no**"


def _stores(one: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [
        (about, found["first"], found["last"], found["slope_h"])
        for about, found in one["stores"].items()
    ]
