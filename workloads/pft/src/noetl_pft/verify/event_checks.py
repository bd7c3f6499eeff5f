"""Checks E1 to E6: the event log against the playbook."""

from collections import Counter, defaultdict

from noetl_pft.verify import event_log
from noetl_pft.verify.checks import Check, RunTerms
from noetl_pft.verify.event_log import EventLog, FrameHistory
from noetl_pft.verify.expected_run import ExpectedRun
from noetl_pft.workload import model

_ONCE = ("start", "validate_all", "end")
_PER_FACILITY = (
    "load_next_facility",
    "setup_facility_work",
    *(f"{verb.format(kind)}" for kind in model.KINDS for verb in ("fetch_{}", "mark_{}_done")),
    "prepare_mds_work",
    "fetch_mds_details",
    "mark_mds_done",
    "validate_facility",
    "log_facility",
)
_ONCE_IN_C = ("start", "seed_pages", "fetch_pages", "mark_pages_done", "end")
_STAGES = {**{f"fetch_{kind}": kind for kind in model.KINDS}, "fetch_mds_details": "mds"}
_MOST_PER_FRAME = 6
_MOST_PER_STEP_OR_SLOT = 20
_MOST_COMMANDS = 20_000
_MOST_RESULT_BYTES = 2048
_FULL_SCALE = model.Scale(10, 1000)


def check_event_stream(events: EventLog) -> Check:
    """E1: an unbroken stream with one start and one good end."""
    check = Check("E1", "unbroken stream, one start, one completion, nothing after it")
    versions = [event.version for event in events.events]
    check.inspected = len(versions)
    if versions != list(range(1, len(versions) + 1)):
        missing = sorted(set(range(1, max(versions) + 1)) - set(versions))
        check.record_difference(
            f"stream versions have gaps or repeats; first missing: {missing[:5]}"
        )
    starts = [e.version for e in events.events if e.kind == event_log.STARTED]
    check.expect_equal("start events", len(starts), 1)
    ends = [e for e in events.events if e.kind in event_log.TERMINAL]
    check.expect_equal("terminal events", [e.kind for e in ends], [event_log.COMPLETED])
    after = ends[0].version if ends else len(versions)
    for event in events.events:
        if event.version > after and event.kind in event_log.TRANSITIONS:
            check.record_difference(f"{event.kind} at version {event.version}, after the end")
    return check


def check_step_entries(events: EventLog, terms: RunTerms) -> Check:
    """E2: every step was entered as often as the playbook says."""
    check = Check("E2", "entries per step")
    if terms.variant == "c":
        entries_by_step = dict.fromkeys(_ONCE_IN_C, 1)
    else:
        entries_by_step = dict.fromkeys(_ONCE, 1) | dict.fromkeys(_PER_FACILITY, terms.facilities)
    counter = Counter(e.step for e in events.events if e.kind == event_log.STEP_ENTER)
    for step in sorted(entries_by_step.keys() | {str(s) for s in counter}):
        check.expect_equal(f"entries of {step}", counter[step], entries_by_step.get(step, 0))
    return check


def check_stages(events: EventLog, terms: RunTerms) -> Check:
    """E3: every stage opens once and closes once, after all of its frames."""
    check = Check("E3", "stages open and close once, after their frames")
    count = len(_STAGES) * terms.facilities if terms.variant != "c" else 1
    kinds = (event_log.STAGE_OPENED, event_log.STAGE_CLOSED, event_log.LOOP_DONE)
    counts = Counter(e.kind for e in events.events)
    for kind in kinds:
        check.expect_equal(kind, counts[kind], count)
    opened = Counter(e.stage for e in events.events if e.kind == event_log.STAGE_OPENED)
    closed = Counter(e.stage for e in events.events if e.kind == event_log.STAGE_CLOSED)
    for stage in opened.keys() | closed.keys():
        check.expect_equal(
            f"stage {stage} (opened, closed)", (opened[stage], closed[stage]), (1, 1)
        )
    closing = {e.stage: e.version for e in events.events if e.kind == event_log.STAGE_CLOSED}
    for name, frame in events.frames.items():
        if frame.has_rows:
            end = closing.get(frame.stage, 0)
            check.require_condition(
                holds=0 < frame.terminal_version < end,
                otherwise=f"frame {name} ends at {frame.terminal_version}, its stage at {end}",
            )
    return check


def check_frames(events: EventLog, terms: RunTerms) -> Check:
    """E4: every frame with rows commits once."""
    check = Check("E4", "every frame with rows commits once, within its attempts")
    for name, frame in events.frames.items():
        if not frame.has_rows:
            continue
        counts = frame.counts
        check.expect_equal(f"commits of frame {name}", counts[event_log.FRAME_COMMITTED], 1)
        check.expect_equal(f"failures of frame {name}", counts[event_log.FRAME_FAILED], 0)
        most = 1 if terms.is_fault_free else terms.max_attempts
        dispatched = counts[event_log.FRAME_DISPATCHED]
        check.require_condition(
            holds=1 <= dispatched <= most,
            otherwise=f"frame {name} was dispatched {dispatched} times, at most {most} expected",
        )
        if terms.is_fault_free:
            unfinished = counts[event_log.FRAME_ABANDONED] + counts[event_log.FRAME_REJECTED]
            check.expect_equal(f"abandoned or rejected, frame {name}", unfinished, 0)
    return check


def check_committed_rows(events: EventLog, expected: ExpectedRun, terms: RunTerms) -> Check:
    """E5: the committed rows of each stage add up."""
    check = Check("E5", "committed rows and frames per stage")
    frames: dict[str | None, list[FrameHistory]] = defaultdict(list)
    for frame in events.frames.values():
        if frame.has_rows:
            frames[frame.stage].append(frame)
    opened = Counter[str]()
    for event in events.events:
        if event.kind != event_log.STAGE_OPENED:
            continue
        step = event.step or ""
        opened[step] += 1
        stage_rows = _compute_stage_rows(step, opened[step], expected, terms)
        of_stage = frames.pop(event.stage, [])
        place = f"{step} number {opened[step]}"
        check.expect_equal(f"rows of {place}", sum(f.committed_rows for f in of_stage), stage_rows)
        if terms.is_fault_free and terms.variant != "c":
            least = -(-stage_rows // terms.frame_rows)
            check.require_condition(
                holds=least <= len(of_stage) <= least + terms.slots - 1,
                otherwise=f"{place} has {len(of_stage)} frames, least {least}",
            )
    for stage in frames:
        check.record_difference(f"frames of a stage that never opened: {stage}")
    check.notes["frames"] = sum(frame.has_rows for frame in events.frames.values())
    return check


def _compute_stage_rows(step: str, nth: int, expected: ExpectedRun, terms: RunTerms) -> int:
    if terms.variant == "c":
        return len(expected.names)
    kind = _STAGES.get(step)
    totals = expected.by_facility.get(nth)
    if kind is None or totals is None:
        return 0
    return totals.mds if kind == "mds" else totals.people


def check_event_cost(events: EventLog, expected: ExpectedRun, terms: RunTerms) -> Check:
    """E6: events are per frame, not per row, and small."""
    check = Check("E6", "events per frame, commands and result sizes")
    frames = sum(frame.has_rows for frame in events.frames.values())
    stages, plain = (1, 4) if terms.variant == "c" else _count_stages_and_steps(terms.facilities)
    units = plain + stages * terms.slots
    most = _MOST_PER_FRAME * frames + _MOST_PER_STEP_OR_SLOT * units
    total = len(events.events)
    check.inspected = total
    if terms.is_fault_free and total > most:
        check.record_difference(f"{total} events, at most {most} for {frames} frames")
    commands = sum(e.kind.startswith(event_log.COMMANDS) for e in events.events)
    if expected.scale == _FULL_SCALE and commands >= _MOST_COMMANDS:
        check.record_difference(f"{commands} command events")
    sizes = sorted(e.result_bytes for e in events.events if e.result_bytes)
    p99 = sizes[min(len(sizes) - 1, len(sizes) * 99 // 100)] if sizes else 0
    if p99 >= _MOST_RESULT_BYTES:
        check.record_difference(f"p99 of results is {p99} bytes")
    check.notes |= {"events": total, "at_most": most, "commands": commands, "result_p99": p99}
    return check


def _count_stages_and_steps(facilities: int) -> tuple[int, int]:
    plain = (len(_PER_FACILITY) - len(_STAGES)) * facilities + len(_ONCE)
    return len(_STAGES) * facilities, plain
