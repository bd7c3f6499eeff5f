"""Checks X1 to X3: tables, ledger and events against each other."""

from collections import Counter, defaultdict

from noetl_pft.verify import event_log
from noetl_pft.verify.checks import Check
from noetl_pft.verify.event_log import EventLog
from noetl_pft.verify.expected_run import ExpectedRun
from noetl_pft.verify.request_summary import RequestSummary
from noetl_pft.verify.target_tables import TargetTables
from noetl_pft.workload import model


def check_stamped_rows(target: TargetTables, events: EventLog) -> Check:
    """X1: the rows stamped with a frame are as many as its commit says."""
    check = Check("X1", "rows stamped per frame equal its committed rows")
    stamped = Counter(
        events.get_root_frame(row.frame)
        for row in (*target.queue, *target.mds_work, *target.page_work)
        if row.frame
    )
    committed: dict[str, int] = defaultdict(int)
    for name, frame in events.frames.items():
        if frame.counts[event_log.FRAME_COMMITTED]:
            committed[events.get_root_frame(name)] += frame.committed_rows
    for frame_id in stamped.keys() | committed.keys():
        if frame_id not in committed:
            check.record_difference(
                f"rows are stamped with frame {frame_id}, which never committed here"
            )
            continue
        check.expect_equal(f"rows of frame {frame_id}", stamped[frame_id], committed[frame_id])
    return check


def check_frames_asked(
    requests: RequestSummary, events: EventLog, frame_of_unit: dict[str, str]
) -> Check:
    """X2: the units asked for under a frame are the units of its rows."""
    check = Check("X2", "units asked under a frame are those of its rows")
    rows: dict[str, set[str]] = defaultdict(set)
    for unit, frame in frame_of_unit.items():
        rows[events.get_root_frame(frame)].add(unit)
    units_by_frame: dict[str, set[str]] = defaultdict(set)
    for frame, units in requests.units_of_frame.items():
        units_by_frame[events.get_root_frame(frame)] |= units
    for frame in rows.keys() | units_by_frame.keys():
        check.inspected += len(rows[frame] | units_by_frame[frame])
        for unit in sorted(rows[frame] ^ units_by_frame[frame]):
            side = (
                "asked but not stamped"
                if unit in units_by_frame[frame]
                else "stamped but not asked"
            )
            check.record_difference(f"frame {frame}: {unit} {side}")
    return check


def check_successors(target: TargetTables, expected: ExpectedRun) -> Check:
    """X3: what a page names was enqueued by the transaction that saved the page."""
    check = Check("X3", "every successor was enqueued by the save of the page that names it")
    created = {
        (row.facility, model.Unit(row.facility, row.patient, row.kind, row.item).unit_name): row
        for row in target.page_work
    }
    for kind in model.PAGED:
        for (facility, name), expected_unit in expected.units[kind].items():
            page = int(name.rpartition("/")[2])
            saved = target.saved[kind].get((facility, name))
            for successor in _list_successors(expected_unit.patient, kind, page, expected):
                row = created.get((facility, successor))
                enqueued_at = row and row.created_at
                saved_at = saved and saved.saved_at
                check.require_condition(
                    holds=enqueued_at is not None and enqueued_at == saved_at,
                    otherwise=f"{successor} was enqueued at {enqueued_at}, "
                    f"{name} was saved at {saved_at}",
                )
    return check


def _list_successors(patient: int, kind: str, page: int, expected: ExpectedRun) -> list[str]:
    following = [f"{kind}/{patient}/{page + 1}"] if page < model.count_pages(patient, kind) else []
    if kind != "assessments" or "mds" not in expected.kinds:
        return following
    return following + [f"mds/{assessment}" for assessment in model.list_mds_ids(patient, page)]
