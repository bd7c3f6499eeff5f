"""Whose connection has ended, and whose is only on its way to another server."""

from noetl_contracts.commands.worker_pools import WorkerHeartbeat
from noetl_contracts.ids import WorkerId
from noetl_messaging.streams.ports import ConnectionReport, OpenConnection
from noetl_reaper.sweeps.departures import WorkerDepartures

GRACE_S = 2.0


def build_report(*named: tuple[int, str], server: str = "a", others: str = "") -> ConnectionReport:
    return ConnectionReport(
        servers=frozenset({server, *others}),
        connections=frozenset(
            OpenConnection(server=server, number=number, name=name) for number, name in named
        ),
    )


def hear_workers(*worker_ids: str) -> WorkerDepartures:
    departures = WorkerDepartures()
    for worker_id in worker_ids:
        beat = WorkerHeartbeat(
            worker_id=WorkerId(worker_id), pool="default", lanes=("io",), running=0, capacity=4
        )
        departures.note_beat(beat)
    return departures


def list_names(departures: WorkerDepartures, now_s: float) -> list[str]:
    return [one.name for one in departures.list_departed(now_s=now_s, grace_s=GRACE_S)]


def test_a_workers_connection_that_ended_counts_after_the_grace() -> None:
    departures = hear_workers("worker-1", "worker-2")
    departures.note_report(build_report((1, "worker-1"), (2, "worker-2")), 10.0)
    departures.note_report(build_report((2, "worker-2")), 10.5)
    assert list_names(departures, 12.4) == []
    assert list_names(departures, 12.5) == ["worker-1"]


def test_the_same_name_on_a_new_connection_does_not_hide_that_the_former_ended() -> None:
    departures = hear_workers("worker-1")
    departures.note_report(build_report((1, "worker-1")), 10.0)
    departures.note_report(build_report((7, "worker-1")), 10.5)
    assert list_names(departures, 12.5) == ["worker-1"]
    assert departures.list_expected_hosts() == {(WorkerId("worker-1"), ("io",))}


def test_a_process_that_shares_its_identity_is_known_by_its_own_name() -> None:
    departures = hear_workers("worker.host-1")
    departures.note_report(build_report((1, "host-1")), 10.0)
    departures.note_report(build_report(), 10.5)
    assert list_names(departures, 12.5) == ["host-1"]


def test_other_programs_may_come_and_go() -> None:
    departures = hear_workers("worker-1")
    departures.note_report(build_report((1, "worker-1"), (2, "planner-1")), 10.0)
    departures.note_report(build_report((1, "worker-1")), 10.5)
    assert list_names(departures, 60.0) == []


def test_what_was_connected_to_a_server_that_left_is_on_its_way_to_another() -> None:
    departures = hear_workers("worker-1")
    departures.note_report(build_report((1, "worker-1"), server="a", others="b"), 10.0)
    departures.note_report(build_report(server="b"), 10.5)
    assert list_names(departures, 60.0) == []


def test_a_server_that_started_again_has_lost_nobody() -> None:
    departures = hear_workers("worker-1")
    departures.note_report(build_report((1, "worker-1"), server="a"), 10.0)
    departures.note_report(build_report(server="again"), 10.5)
    departures.note_report(build_report((1, "worker-1"), server="again"), 11.0)
    assert list_names(departures, 60.0) == []


def test_who_is_not_connected_is_not_expected_to_answer() -> None:
    departures = hear_workers("worker-1", "worker-2")
    departures.note_report(build_report((2, "worker-2")), 10.0)
    assert departures.list_expected_hosts() == {(WorkerId("worker-2"), ("io",))}


def test_who_is_inside_its_grace_is_still_expected_to_answer() -> None:
    departures = hear_workers("worker-1", "worker-2")
    departures.note_report(build_report((1, "worker-1"), (2, "worker-2")), 10.0)
    departures.note_report(build_report((2, "worker-2")), 10.5)
    departures.note_report(build_report(), 12.4)
    departed = departures.list_departed(now_s=12.5, grace_s=GRACE_S)
    assert [one.name for one in departed] == ["worker-1"]
    assert departures.list_expected_hosts(departed) == {(WorkerId("worker-2"), ("io",))}


def test_nothing_is_concluded_while_a_server_is_missing() -> None:
    departures = hear_workers("worker-1")
    departures.note_report(build_report((1, "worker-1"), server="a", others="b"), 10.0)
    departures.note_report(build_report(server="a", others="b"), 10.5)
    departures.note_report(build_report(server="a"), 12.5)
    assert list_names(departures, 13.0) == []
    departures.note_report(build_report(server="a", others="b"), 13.5)
    assert list_names(departures, 13.5) == ["worker-1"]


def test_programs_without_a_name_are_no_workers() -> None:
    departures = hear_workers("worker-host-1-ab")
    departures.note_report(build_report((1, ""), (2, "worker-host-1-ab")), 10.0)
    departures.note_report(build_report((1, "")), 10.5)
    assert departures.list_expected_hosts(departures.list_departed(now_s=13, grace_s=2)) == set()
    departures.note_report(build_report(), 14.0)
    assert list_names(departures, 20.0) == ["worker-host-1-ab"]
