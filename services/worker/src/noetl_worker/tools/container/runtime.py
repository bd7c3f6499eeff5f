"""What runs containers, as the tool sees it: the port, what is started, and how it ended."""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import BinaryIO, Protocol

from msgspec import Struct

from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.tools.container.archive import WorkFiles
from noetl_worker.tools.container.images import RegistryLogin
from noetl_worker.tools.container.names import SOURCE, WORK_FOLDER

_KEY_CHARACTERS = 32
_MEBIBYTE = 1024 * 1024
# Of a process that the kernel killed.
_KILLED_CODE = "137"


class ContainerResources(Struct, frozen=True, kw_only=True):
    """What a container has at most: bytes of memory, and CPUs."""

    memory_bytes: int
    cpus: float


class ContainerSpec(Struct, frozen=True, kw_only=True):
    """One container, checked; `attempt_key` is the same when the attempt is delivered again.

    `labels` say for people where it belongs. `deadline_s` is when it has ended in any case, in
    seconds since 1970. `user` is `uid:gid`; empty: the image's own. `registry` is by whom the image
    is fetched; None: by nobody in particular.
    """

    image: str
    command: tuple[str, ...]
    args: tuple[str, ...]
    environ: Mapping[str, str]
    attempt_key: str
    labels: Mapping[str, str]
    deadline_s: int
    timeout_s: float
    resources: ContainerResources
    requests: ContainerResources
    has_network: bool
    user: str
    service_account: str = ""
    ttl_s: int = 300
    registry: RegistryLogin | None = None

    @property
    def name(self) -> str:
        """Return the name of the container: that of the attempt."""
        return f"noetl-{self.attempt_key.removeprefix('sha256:')[:_KEY_CHARACTERS]}"


class StartedContainer(Struct, frozen=True, kw_only=True):
    """A container that was started."""

    container_id: str
    name: str
    pod: str = ""


class ContainerEnd(Struct, frozen=True, kw_only=True):
    """How a container ended; `evicted` says why it was taken away before its end.

    `result` is what it left as its result, where the runtime has that apart from files.
    """

    exit_code: int
    is_out_of_memory: bool = False
    is_past_deadline: bool = False
    evicted: str = ""
    started_at: str = ""
    finished_at: str = ""
    result: bytes | None = None


class ContainerRecord(Struct, frozen=True, kw_only=True):
    """A container of any worker, as the runtime lists it."""

    container_id: str
    name: str
    owner: str
    deadline_s: int


class ContainerRuntime(Protocol):
    """Runs containers. Every method raises `ToolFailure` for what the runtime refuses."""

    async def start_container(
        self, spec: ContainerSpec, files: WorkFiles, tell: Callable[[str], None]
    ) -> StartedContainer:
        """Start a container with these files in its folder.

        One of an earlier delivery of the same attempt is removed before; `tell` hears of it.
        """

    def follow_logs(self, container: StartedContainer) -> AsyncIterator[tuple[str, bytes]]:
        """Yield what it writes, with the name of the stream, until it ends."""

    async def wait_for_end(self, container: StartedContainer) -> ContainerEnd:
        """Return how it ended."""

    async def collect_files(
        self, container: StartedContainer, target: BinaryIO, *, bytes_max: int
    ) -> bool:
        """Write what its folder holds to `target`, as an archive; at most so many bytes.

        False where the runtime shows the files of a container that has ended to nobody.
        """

    async def remove_container(self, container_id: str, *, grace_s: float) -> None:
        """End it if it runs, and remove it with its folder; one that is gone is no error."""

    async def list_containers(self) -> list[ContainerRecord]:
        """List the containers that workers have started here."""

    async def close(self) -> None:
        """Close connections."""


class WorkerPodGone(ToolFailure):
    """This worker's pod was deleted while its process goes on: it can do nothing more here.

    `is_certain` is false where only its token is not taken any more, which may pass.
    """

    def __init__(self, text: str, *, is_certain: bool) -> None:
        super().__init__(build_error("connection", text, source=SOURCE))
        self.is_certain = is_certain


def build_unreachable_failure(text: str) -> ToolFailure:
    """Say that the runtime did not answer."""
    return ToolFailure(build_error("connection", text, source=SOURCE))


def build_start_failure(text: str, *, is_lasting: bool = False) -> ToolFailure:
    """Say why a container was not started; a cause that lasts is not tried again."""
    return ToolFailure(
        build_error("container_start", text, source=SOURCE, retryable=not is_lasting)
    )


def build_login_failure(image: str, login: RegistryLogin, problem: str) -> ToolFailure:
    """Say that a registry refused the credential of a task, which may be replaced meanwhile."""
    text = (
        f"image {image} cannot be fetched from {login.server}: it refuses user "
        f"{login.username!r:.80} of the credential in 'auth': {problem}"
    )
    return ToolFailure(build_error("auth", text, source=SOURCE))


def build_evicted_failure(text: str) -> ToolFailure:
    """Say that a container was taken away before its end."""
    return ToolFailure(build_error("container_evicted", text, source=SOURCE))


def build_memory_failure(memory_bytes: int) -> ToolFailure:
    """Say that a container needed more memory than it may have."""
    text = (
        f"the container needed more memory than its limit of {memory_bytes / _MEBIBYTE:g}Mi and "
        "was ended (OOMKilled): raise 'resources.limits.memory', or let it hold less at once"
    )
    return ToolFailure(build_error("container_oom", text, code=_KILLED_CODE, source=SOURCE))


def build_too_large_failure(bytes_max: int) -> ToolFailure:
    """Say that a container left more files than an execution may keep."""
    text = (
        f"the container left more than {bytes_max:,} bytes in {WORK_FOLDER}: remove what is not "
        "needed before it ends, or raise NOETL_WORKER_WORKSPACE_BYTES_MAX"
    )
    return ToolFailure(build_error("payload_too_large", text, source=SOURCE))
