"""The walls around a child process, as the user that a deployment would use."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.support.processes import count_running, make_nap
from tests.support.servers import wait_until

from noetl_contracts import codec
from noetl_worker.sandbox import confinement

NOBODY = 65534
SYSTEM_PYTHON = shutil.which("python3", path="/usr/bin:/bin")


@pytest.fixture
def unprivileged(tmp_path: Path) -> tuple[str, int, Path]:
    """A Python, a user and a folder with a copy of the program that this user can read."""
    # Root may be the only user that can read the environment in which tests run.
    if os.getuid() != 0 or SYSTEM_PYTHON is None:
        return sys.executable, os.getuid(), Path(confinement.__file__).parents[2]
    for directory in (tmp_path, *tmp_path.parents):
        if directory == Path(tempfile.gettempdir()):
            break
        directory.chmod(0o755)
    sources = tmp_path / "src"
    shutil.copytree(Path(confinement.__file__).parent, sources / "noetl_worker" / "sandbox")
    return SYSTEM_PYTHON, NOBODY, sources


def list_command(unprivileged: tuple[str, int, Path], bounds: str) -> list[str]:
    """List how the program is started that confines itself and becomes what follows."""
    python, _, sources = unprivileged
    start = f"import sys; sys.path.append({str(sources)!r}); "
    start += "from noetl_worker.sandbox import confinement; confinement.main()"
    return [python, "-I", "-S", "-c", start, bounds]


def run(
    unprivileged: tuple[str, int, Path], script: str, **bounds: object
) -> subprocess.CompletedProcess[str]:
    _, user, _ = unprivileged
    command = [*list_command(unprivileged, codec.encode_text(bounds)), "/bin/sh", "-c", script]
    return subprocess.run(  # noqa: S603 - what is run is what is tested
        command, capture_output=True, text=True, check=False, user=user, cwd="/", timeout=30
    )


def test_the_parents_environment_is_closed(unprivileged: tuple[str, int, Path]) -> None:
    _, user, _ = unprivileged
    secret = {"CANARY": "canary-canary", "PATH": "/usr/bin:/bin"}
    with subprocess.Popen(["/bin/sleep", "60"], env=secret, user=user) as parent:
        try:
            path = f"/proc/{parent.pid}/environ"
            open_to_all = subprocess.run(  # noqa: S603 - as above
                ["/bin/cat", path], capture_output=True, user=user, check=True
            )
            assert b"canary-canary" in open_to_all.stdout
            closed = run(unprivileged, f"cat {path}; kill -9 {parent.pid}")
            assert closed.stdout == ""
            assert "Permission denied" in closed.stderr
            assert parent.poll() is None
        finally:
            parent.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no signal tells of a parent's end")
def test_nothing_outlives_the_process_that_began_it(
    unprivileged: tuple[str, int, Path],
) -> None:
    python, user, _ = unprivileged
    begin = "import subprocess, sys; subprocess.run(sys.argv[1:])"
    nap = make_nap()
    script = f"echo begun; exec /bin/sleep {nap}"
    confined = (*list_command(unprivileged, "{}"), "/bin/sh", "-c", script)
    command = [python, "-I", "-S", "-c", begin, *confined]
    with subprocess.Popen(  # noqa: S603 - as above
        command, stdout=subprocess.PIPE, text=True, user=user, cwd="/"
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "begun\n"
        parent.kill()

    wait_until(
        lambda: count_running(nap) == 0,
        timeout_s=60,
        what="the child of a killed process ends",
    )


def test_files_are_moved_and_made_as_ever(unprivileged: tuple[str, int, Path]) -> None:
    script = (
        "d=$(mktemp -d) && cd $d && mkdir a b && echo x > a/f && mv a/f b/f && cat b/f; rm -r $d"
    )
    done = run(unprivileged, script)
    assert (done.stdout, done.returncode) == ("x\n", 0)


def test_a_network_exists_only_where_it_is_granted(unprivileged: tuple[str, int, Path]) -> None:
    listing = "cat /proc/net/dev | wc -l"
    count = len(Path("/proc/net/dev").read_text().splitlines())
    assert int(run(unprivileged, listing, network=True).stdout) == count
    assert int(run(unprivileged, listing).stdout) == 3  # two lines of headings, and loopback


def test_a_command_that_is_not_there_is_named(unprivileged: tuple[str, int, Path]) -> None:
    _, user, _ = unprivileged
    done = subprocess.run(  # noqa: S603 - as above
        [*list_command(unprivileged, "{}"), "/no/such/command"],
        capture_output=True,
        text=True,
        check=False,
        user=user,
        cwd="/",
    )
    assert (done.returncode, done.stderr) == (
        126,
        "/no/such/command: No such file or directory\n",
    )
