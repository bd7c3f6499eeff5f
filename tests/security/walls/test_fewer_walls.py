"""What stands where the system grants less: older Landlock, or none, and no namespaces."""

import subprocess
import sys
from pathlib import Path

import pytest

from noetl_contracts import codec
from noetl_worker.sandbox import confinement

SOURCES = Path(confinement.__file__).parents[2]
# Each leaves a way to walls out, as another system would.
NO_NAMESPACES = "confinement._enter_namespaces = lambda libc, missing, **_: set()"
# Landlock does not know them.
ATTRIBUTES = "attributes"
LANDLOCK = "landlock.get_version = lambda _: {version}"
OLD_MOUNTS = "file_view._SET_ATTRIBUTES = 9999"
NO_FILTER = "system_call_filter.install_filter = lambda *_, **__: False"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the walls are those of Linux")


def confine(tmp_path: Path, *lacking: str, script: str = "") -> subprocess.CompletedProcess[str]:
    """Confine a process on such a system; it runs a script, or tells which walls it lacks."""
    (tmp_path / "own").mkdir(exist_ok=True)
    start = f"import sys; sys.path.append({str(SOURCES)!r})\n"
    start += (
        "from noetl_worker.sandbox import confinement, file_view, landlock, system_call_filter\n"
    )
    start += "\n".join(lacking) + "\nconfinement.main()"
    bounds = codec.encode_text({"write": [str(tmp_path / "own")]})
    command = ["/bin/sh", "-c", script] if script else ["--describe"]
    return subprocess.run(  # noqa: S603 - what is run is what is tested
        [sys.executable, "-I", "-S", "-c", start, bounds, *command],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path / "own",
        timeout=60,
    )


def list_missing(tmp_path: Path, *lacking: str) -> dict[str, str]:
    done = confine(tmp_path, *lacking)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = codec.decode_json(done.stdout.encode())
    return found


ATTACK = (
    "cat ../secret; echo x > ../secret; echo x > ../new; cat ../secret; echo own > own && cat own"
)


@pytest.mark.parametrize(
    "lacking",
    [
        (),
        (NO_NAMESPACES,),
        *((NO_NAMESPACES, LANDLOCK.format(version=version)) for version in range(2, 8)),
        (LANDLOCK.format(version=-1),),
        (NO_FILTER,),
        (OLD_MOUNTS,),
        (NO_NAMESPACES, NO_FILTER),
    ],
    ids=lambda lacking: " ".join(lacking)[:60] or "all",
)
def test_files_are_walled_in_by_any_of_the_two_ways(
    tmp_path: Path, lacking: tuple[str, ...]
) -> None:
    (tmp_path / "secret").write_text("canary")
    done = confine(tmp_path, *lacking, script=ATTACK)
    assert done.stdout == "own\n", done
    assert (tmp_path / "secret").read_text() == "canary"
    assert not (tmp_path / "new").exists()
    missing = list_missing(tmp_path, *lacking)
    assert not {"reading", "writing", "processes"} & missing.keys()


@pytest.mark.parametrize(
    ("lacking", "walls", "reason"),
    [
        ((), set(), ""),
        ((NO_FILTER,), {"sockets"}, "CONFIG_SECCOMP_FILTER"),
        ((NO_NAMESPACES,), {ATTRIBUTES}, ""),
        ((OLD_MOUNTS,), {ATTRIBUTES}, "Linux 5.12"),
        (
            (OLD_MOUNTS, LANDLOCK.format(version=-1)),
            {"writing", ATTRIBUTES},
            "Linux 5.12",
        ),
        ((NO_NAMESPACES, LANDLOCK.format(version=5)), {"signals", ATTRIBUTES}, "Linux 6.12"),
        ((LANDLOCK.format(version=5),), set(), ""),
        (
            (NO_NAMESPACES, LANDLOCK.format(version=-1)),
            {"reading", "writing", ATTRIBUTES, "processes", "signals"},
            "no Landlock",
        ),
        (
            (NO_NAMESPACES, LANDLOCK.format(version=-1), NO_FILTER),
            {"reading", "writing", ATTRIBUTES, "processes", "signals", "sockets", "network"},
            "",
        ),
        (
            (NO_NAMESPACES, LANDLOCK.format(version=4), NO_FILTER),
            {"sockets", "signals", ATTRIBUTES},
            "",
        ),
    ],
)
def test_a_wall_that_does_not_stand_is_named_with_its_reason(
    tmp_path: Path, lacking: tuple[str, ...], walls: set[str], reason: str
) -> None:
    missing = list_missing(tmp_path, *lacking)
    assert missing.keys() == walls
    assert all(missing.values())
    assert reason in " ".join(missing.values())


def test_without_namespaces_the_filter_takes_the_network(tmp_path: Path) -> None:
    script = f"{sys.executable} -I -S -c 'import socket; socket.socket()'"
    done = confine(
        tmp_path,
        NO_NAMESPACES,
        script=f"exec /usr/bin/env python3 -c 'import socket; socket.socket()'; {script}",
    )
    assert "PermissionError" in done.stderr
