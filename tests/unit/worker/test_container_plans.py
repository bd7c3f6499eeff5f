"""What a container task may ask for: images, amounts, files, accounts and secrets."""

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from tests.support.calls import call_of

from noetl_worker.domain.failures import ToolFailure
from noetl_worker.domain.secret_mask import SecretMask
from noetl_worker.tools.container import archive, images, plan, quantities
from noetl_worker.tools.container.archive import WorkFile, WorkFiles
from noetl_worker.tools.container.container_result import OutputTail
from noetl_worker.tools.container.docker_runtime import build_create_body
from noetl_worker.tools.container.plan import ContainerLimits
from noetl_worker.tools.container.runtime import ContainerSpec

LIMITS = ContainerLimits(images=("*",), is_network_by_task=True)


def spec_of(limits: ContainerLimits = LIMITS, **fields: Any) -> ContainerSpec:
    """The container of a task with these fields."""
    fields = {"image": "alpine:3.20", **fields}
    call = call_of("container", fields, timeout_s=60)
    return plan.build_spec(call, fields, limits, owner="host:/folder", now_s=1_000)


def refusal_of(limits: ContainerLimits = LIMITS, **fields: Any) -> tuple[str, str]:
    """The kind and message with which a task is refused."""
    with pytest.raises(ToolFailure) as refused:
        spec_of(limits, **fields)
    return refused.value.error.kind, refused.value.error.message


@pytest.mark.parametrize(
    ("image", "patterns"),
    [
        ("python", ("python",)),
        ("python", ("python:*",)),
        ("python:3.11-slim", ("busybox", "python:3.*")),
        ("registry.example/team/tool:1", ("registry.example/*",)),
        ("registry.example:5000/tool@sha256:" + "0" * 64, ("registry.example:5000/tool*",)),
        ("anything.example/at/all", ("*",)),
    ],
)
def test_an_image_runs_where_a_pattern_allows_it(image: str, patterns: tuple[str, ...]) -> None:
    assert images.check_image(image, patterns).startswith(image)


@pytest.mark.parametrize(
    ("image", "patterns"),
    [
        ("python:3.11", ()),
        ("python:3.12", ("python:3.11",)),
        ("python:3.12", ("python",)),
        ("python.evil.example/tool:1", ("python*",)),
        ("evil/registry.example/tool", ("registry.example/*",)),
        ("registry.example.evil/tool", ("registry.example/*",)),
        ("evil/python:3.11", ("python:*",)),
        ("python", ("*/python",)),
    ],
)
def test_no_other_image_runs(image: str, patterns: tuple[str, ...]) -> None:
    kind, message = refusal_of(ContainerLimits(images=patterns), image=image)
    assert kind == "config"
    assert "NOETL_WORKER_CONTAINER_IMAGES" in message


@pytest.mark.parametrize("image", ["a b", "-rm", "../x", "UPPER", "a?b", "a&fromSrc=x", "é"])
def test_what_is_no_name_of_an_image_is_refused(image: str) -> None:
    kind, message = refusal_of(image=image)
    assert kind == "validation"
    assert "is not the name of an image" in message


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("512Mi", 512 * 1024**2), ("1G", 10**9), (1024, 1024), ("1.5Gi", 1536 * 1024**2)],
)
def test_memory_is_read_as_kubernetes_spells_it(text: Any, size_bytes: int) -> None:
    assert quantities.parse_memory(text) == size_bytes


@pytest.mark.parametrize(("text", "cpus"), [("500m", 0.5), (2, 2.0), ("1.5", 1.5)])
def test_cpus_are_read_as_kubernetes_spells_them(text: Any, cpus: float) -> None:
    assert quantities.parse_cpus(text) == cpus


@pytest.mark.parametrize("text", ["", "-1", "many", "1Zi", 0, True, None, [], "500m"])
def test_what_is_no_memory_is_none(text: Any) -> None:
    assert quantities.parse_memory(text) is None


def test_a_task_that_says_nothing_has_the_limits_of_the_worker() -> None:
    spec = spec_of(structs.replace(LIMITS, memory_bytes=99 * 1024**2, cpus=0.5))
    assert (spec.resources.memory_bytes, spec.resources.cpus) == (99 * 1024**2, 0.5)
    assert spec.requests == spec.resources


@pytest.mark.parametrize(
    ("fields", "kind", "named"),
    [
        ({"resources": {"limits": {"memory": "5Gi"}}}, "config", "CONTAINER_MEMORY_BYTES_MAX"),
        ({"resources": {"limits": {"cpu": 5}}}, "config", "CONTAINER_CPUS_MAX"),
        ({"resources": {"limits": {"memory": "x"}}}, "validation", "'x' is no amount of memory"),
        ({"resources": {"limits": {"gpu": 1}}}, "validation", "'resources.limits.gpu'"),
        ({"resources": {"requests": {"memory": "1Gi"}}}, "validation", "is more than"),
        ({"service_account": "admin"}, "config", "NOETL_WORKER_CONTAINER_ACCOUNTS"),
        ({"env": {"A=B": 1}}, "validation", "is not the name of a variable"),
        ({"env": [{"name": "A", "value": "x\0y"}]}, "validation", "NUL"),
        ({"env": {"A": "x" * 120_001}}, "validation", "120,000"),
        ({"network": "perhaps"}, "validation", "spec.network"),
    ],
)
def test_what_is_asked_for_beyond_the_limits_is_refused(
    fields: dict[str, Any], kind: str, named: str
) -> None:
    found = refusal_of(**fields)
    assert found[0] == kind
    assert named in found[1]


def test_jobs_run_in_the_namespace_of_the_worker() -> None:
    limits = structs.replace(LIMITS, namespace="jobs")
    assert spec_of(limits, namespace="jobs").name.startswith("noetl-")
    kind, message = refusal_of(limits, namespace="kube-system")
    assert (kind, "NOETL_WORKER_CONTAINER_NAMESPACE" in message) == ("config", True)


@pytest.mark.parametrize(
    "fields", [{"command": ["a", "--key=canary-secret"]}, {"args": ["canary-secret"]}]
)
def test_a_credential_is_not_shown_to_who_lists_containers(fields: dict[str, Any]) -> None:
    spec = spec_of(**fields)
    with pytest.raises(ToolFailure) as refused:
        plan.check_secrets(spec, SecretMask(own=["canary-secret"]))
    assert "pass it by 'env'" in refused.value.error.message
    plan.check_secrets(spec_of(env={"KEY": "canary-secret"}), SecretMask(own=["canary-secret"]))


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../x", "a/../../x", "", ".", "/work", "x\0", "result.json"]
)
def test_a_file_of_a_task_lies_in_the_folder_of_its_container(path: str) -> None:
    with pytest.raises(ToolFailure):
        plan.parse_file_path(path)


@pytest.mark.parametrize(("path", "inner"), [("a", "a"), ("/work/a/b", "a/b"), ("a//b", "a/b")])
def test_paths_below_the_folder_are_relative_to_it(path: str, inner: str) -> None:
    assert plan.parse_file_path(path) == inner


def test_docker_is_asked_for_a_container_without_rights() -> None:
    body = build_create_body(spec_of(env={"A": 1}, args=["x"]), network="bridge")
    host = body["HostConfig"]
    assert (host["NetworkMode"], host["ReadonlyRootfs"], host["Privileged"]) == (
        "none",
        True,
        False,
    )
    assert (host["CapDrop"], host["SecurityOpt"]) == (["ALL"], ["no-new-privileges"])
    assert {mount["Type"] for mount in host["Mounts"]} == {"volume"}
    assert not {"Binds", "Devices", "CapAdd", "PidMode", "UsernsMode"} & host.keys()
    assert host["Memory"] == host["MemorySwap"] == 512 * 1024**2
    assert (body["User"], body["Env"]) == ("10001:10001", ["HOME=/tmp", "A=1"])
    assert "Entrypoint" not in body
    networked = build_create_body(spec_of(network=True), network="apart")
    assert networked["HostConfig"]["NetworkMode"] == "apart"


def archive_of(*entries: tarfile.TarInfo, content: bytes = b"") -> io.BytesIO:
    """An archive as a runtime would send it."""
    opened = io.BytesIO()
    with tarfile.open(fileobj=opened, mode="w") as written:
        for entry in entries:
            entry.size = len(content) if entry.isreg() else 0
            written.addfile(entry, io.BytesIO(content))
    return opened


def entry_of(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    """An entry of an archive."""
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, target
    return entry


@pytest.mark.parametrize(
    "entry",
    [
        entry_of("work/../../escaped"),
        entry_of("/work/escaped"),
        entry_of("work/link", tarfile.SYMTYPE, "/etc/passwd"),
        entry_of("work/hard", tarfile.LNKTYPE, "work/a"),
        entry_of("work/device", tarfile.CHRTYPE),
        entry_of("work/pipe", tarfile.FIFOTYPE),
    ],
)
def test_an_archive_puts_nothing_outside_and_no_links(
    entry: tarfile.TarInfo, tmp_path: Path
) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    with pytest.raises(ToolFailure):
        archive.read_archive(archive_of(entry, content=b"x"), WorkFiles(folder=folder))
    assert [path.name for path in tmp_path.rglob("*")] == ["files"]


def test_a_folder_is_given_what_the_container_left(tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text("old")
    (tmp_path / "a").write_text("a file before, a folder now")
    own = WorkFile(path="own.txt", content=b"same")
    entries = ("work/own.txt", "work/a/b.txt", "work/.noetl/script", "work/result.json")
    found = archive.read_archive(
        archive_of(*map(entry_of, entries), content=b"same"),
        WorkFiles(folder=tmp_path, own=(own,)),
    )
    assert found == b"same"
    left = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert left == [tmp_path / "a" / "b.txt"]


def test_a_container_is_given_files_that_it_may_change(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "x").write_bytes(b"1")
    (tmp_path / "result.json").write_bytes(b"an older one")
    opened = io.BytesIO()
    files = WorkFiles(folder=tmp_path, own=(WorkFile(path="d/x", content=b"#!mine"),))
    archive.write_archive(opened, files, user="7:8")
    with tarfile.open(fileobj=opened) as read:
        found = {entry.name: (entry.uid, entry.gid, entry.mode) for entry in read}
    assert found == {"": (7, 8, 0o755), "d": (7, 8, 0o755), "d/x": (7, 8, 0o755)}


def test_the_end_of_a_long_log_begins_with_a_whole_line() -> None:
    tail = OutputTail(SecretMask())
    for number in range(40_000):
        tail.add_output("stdout", b"line %06d\n" % number)
    text = tail.build_text()
    assert len(text) <= 64 * 1024
    assert text.startswith("line ")
    assert text.endswith("line 039999\n")


def test_a_digest_does_not_go_around_the_tag_that_is_allowed() -> None:
    digest = f"@sha256:{'0' * 64}"
    with pytest.raises(ToolFailure, match="not allowed"):
        images.check_image(f"team/job:prod-1{digest}", ("team/job:prod-*",))
    for pattern in ("team/job:*", "team/*", f"team/job:prod-1{digest}"):
        assert images.check_image(f"team/job:prod-1{digest}", (pattern,))


@pytest.mark.parametrize("value", ["0.0000000001", "9" * 400, "1.2345"])
def test_amounts_that_would_come_to_none_are_refused(value: str) -> None:
    assert quantities.parse_cpus(value) is None


def test_a_result_is_the_last_line_of_a_whole_output_alone() -> None:
    tail = OutputTail(SecretMask())
    tail.add_output("stdout", b'{"done": 10}\n')
    assert tail.find_result() is None
    tail.is_whole = True
    assert tail.find_result() == {"done": 10}


def test_a_file_that_a_task_only_hid_stays(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_bytes(b"of the execution")
    files = WorkFiles(folder=tmp_path, own=(WorkFile(path="data.csv", content=b"of the task"),))
    opened = io.BytesIO()
    with tarfile.open(fileobj=opened, mode="w") as written:
        entry = tarfile.TarInfo("work/data.csv")
        entry.size = len(b"of the task")
        written.addfile(entry, io.BytesIO(b"of the task"))
    opened.seek(0)
    archive.read_archive(opened, files)
    assert (tmp_path / "data.csv").read_bytes() == b"of the execution"
