"""The console's section of the page."""

from typing import Any

from tests.load.telling import on, table


def section(one: dict[str, Any]) -> str:
    """Write how long pages take, whether a live one grows, and what watchers cost."""
    watching, watchers, logs = one["watching"], one["watchers"], one["logs"]
    pages = [
        (page["page"], page["seconds"], page["heap_mib"], page["nodes"]) for page in one["pages"]
    ]
    return f"""## Pages of the console

`make load LOADS=console`: Chromium beside a stack with one worker, {one["runs"]:,} runs, a run of {
        one["items"]:,} items, one of {one["lines"]:,} lines and
one that goes on. {on(one)}

{table(("page", "seconds until it is shown", "heap, MiB", "nodes"), pages)}

A search for {logs["found"]} of {logs["lines"]:,} lines takes {logs["seconds"]:g} s in {
        logs["pages"]
    } answers, the longest {logs["longest_s"]:g} s.

A page open on the live run for {watching["minutes"]:g} minutes at {
        watching["events_per_s"]:g} events a second: its heap after a collection
went from {watching["heap_mib_first"]:g} to {
        watching["heap_mib_last"]:g} MiB, a line through it gains {
        watching["heap_mib_an_hour"]:g} MiB an hour; nodes {watching["nodes_first"]:,} to {
        watching["nodes_last"]:,}.

The planner takes {watchers["alone"]:.1%} of a core for the run alone, and {
        watchers["watched"]:.1%} while {watchers["watchers"]} pages watch it: they cost {
        watchers["share"]:.1%}.
"""
