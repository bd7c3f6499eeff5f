"""What the status of a pod and its Job says of a container: whether it runs, and how it ended."""

from typing import Any

from msgspec import Struct

from noetl_worker.tools.container.runtime import ContainerEnd

# What a container waits for that does not come by itself.
_LASTING_WAITS = frozenset({"InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError"})
_FAILED_WAITS = frozenset({"ImagePullBackOff", "CreateContainerError", "RunContainerError"})
_OUT_OF_MEMORY, _EVICTED = "OOMKilled", "Evicted"
_LOST = frozenset({"NodeLost", "NodeShutdown", "Terminated", "Preempting"})
_CODE_UNKNOWN = -1


class PodState(Struct, frozen=True, kw_only=True):
    """Where a pod stands: at most one of `end` and `start_problem` is there."""

    name: str = ""
    is_running: bool = False
    end: ContainerEnd | None = None
    start_problem: str = ""
    is_problem_lasting: bool = False
    # Why it has not begun; it may begin yet.
    waits_for: str = ""


def parse_pod(pod: dict[str, Any]) -> PodState:
    """Read the state of a pod with one container."""
    name = pod["metadata"]["name"]
    status = pod.get("status") or {}
    container: dict[str, Any] = next(iter(status.get("containerStatuses") or ()), {})
    state = container.get("state") or {}
    evicted = _find_eviction(status)
    if evicted and status.get("phase") != "Succeeded":
        end = _parse_end(state.get("terminated") or {}, evicted=evicted)
        return PodState(name=name, end=end)
    if terminated := state.get("terminated"):
        return PodState(name=name, end=_parse_end(terminated))
    if "running" in state:
        return PodState(name=name, is_running=True)
    if status.get("phase") == "Failed":
        reason = status.get("message") or status.get("reason") or "its pod failed"
        return PodState(name=name, end=_parse_end({}, evicted=str(reason)))
    return _parse_waiting(name, status, state.get("waiting") or {})


def is_past_deadline(job: dict[str, Any]) -> bool:
    """Tell whether a Job was ended because its time was over."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    return any(condition.get("reason") == "DeadlineExceeded" for condition in conditions)


def find_job_failure(job: dict[str, Any]) -> str:
    """Return why a Job has failed; empty where it has not."""
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "Failed" and condition.get("status") == "True":
            return f"{condition.get('reason')}: {condition.get('message') or 'no more is known'}"
    return ""


def _parse_waiting(name: str, status: dict[str, Any], waiting_state: dict[str, Any]) -> PodState:
    reason = str(waiting_state.get("reason") or "")
    text = f"{reason}: {waiting_state.get('message') or 'no more is known'}"
    if reason in _LASTING_WAITS or reason in _FAILED_WAITS:
        return PodState(name=name, start_problem=text, is_problem_lasting=reason in _LASTING_WAITS)
    unscheduled = next(
        (
            str(condition.get("message") or condition.get("reason"))
            for condition in status.get("conditions") or ()
            if condition.get("type") == "PodScheduled" and condition.get("status") == "False"
        ),
        "",
    )
    return PodState(name=name, waits_for=unscheduled or (text if reason else ""))


def _parse_end(terminated: dict[str, Any], *, evicted: str = "") -> ContainerEnd:
    message = terminated.get("message")
    return ContainerEnd(
        exit_code=int(terminated.get("exitCode", _CODE_UNKNOWN)),
        is_out_of_memory=terminated.get("reason") == _OUT_OF_MEMORY,
        evicted=evicted,
        started_at=str(terminated.get("startedAt") or ""),
        finished_at=str(terminated.get("finishedAt") or ""),
        result=message.encode() if message else None,
    )


def _find_eviction(status: dict[str, Any]) -> str:
    """Return why a pod was taken from its node; empty where it was not."""
    if status.get("reason") in {_EVICTED, *_LOST}:
        return f"{status['reason']}: {status.get('message') or 'no more is known'}"
    for condition in status.get("conditions") or ():
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            return f"{condition.get('reason')}: {condition.get('message') or 'no more is known'}"
    return ""
