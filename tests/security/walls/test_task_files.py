"""A task sees its own workspace, the system and the interpreter, and nothing else."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.calls import call_of
from tests.support.working import Bench

from noetl_contracts.ids import TenantId
from noetl_worker.tools.calls.call import Outcome

CANARY = "canary-of-the-worker"


async def run(worker: Bench, code: str, *, tenant: str = "acme", **fields: Any) -> Outcome:
    return await worker.tools.run(
        call_of("python", {"code": code, **fields}, tenant=TenantId(tenant))
    )


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder that any process of the worker's user reads and writes."""
    folder = tmp_path / "home"
    folder.mkdir(mode=0o755)
    (folder / "secrets.json").write_text(json.dumps({"key": CANARY}))
    return folder


LIBC = "import ctypes\nlibc = ctypes.CDLL(None)\n"
READ = (
    "return open('OUT/secrets.json').read()",
    "os.symlink('OUT/secrets.json', 'link')\nreturn open('link').read()",
    "os.symlink('OUT', 'folder')\nreturn open('folder/secrets.json').read()",
    "os.link('OUT/secrets.json', 'hard')\nreturn open('hard').read()",
    "os.rename('OUT/secrets.json', 'moved')\nreturn open('moved').read()",
    "return os.listdir('OUT')",
    "return os.stat('OUT/secrets.json').st_size",
    "return open('/proc/self/root/OUT/secrets.json').read()",
    "return open('/proc/1/root/OUT/secrets.json').read()",
    "return open('/proc/PARENT/root/OUT/secrets.json').read()",
    "return open(os.path.join(os.getcwd(), *['..'] * 20) + 'OUT/secrets.json').read()",
    "import subprocess\nreturn subprocess.check_output(['/bin/cat', 'OUT/secrets.json']).decode()",
    "import mmap\nf = os.open('OUT/secrets.json', os.O_RDONLY)\nreturn os.read(f, 99).decode()",
    "f = os.open('OUT/secrets.json', os.O_PATH)\nreturn open(f'/proc/self/fd/{f}').read()",
    "os.chroot('/proc/1/root')\nreturn open('OUT/secrets.json').read()",
    LIBC + "os.mkdir('m')\nassert not libc.mount(b'OUT', b'm', None, 4096, None), 'refused'\n"
    "return open('m/secrets.json').read()",
    LIBC + "assert not libc.unshare(0x10020000), 'refused'\nreturn 'a namespace'",
)
WRITE = (
    "open('OUT/secrets.json', 'w').write('x')",
    "open('OUT/new', 'w')",
    "os.truncate('OUT/secrets.json', 0)",
    "os.chmod('OUT/secrets.json', 0o666)",
    "os.chmod('OUT', 0)",
    "os.utime('OUT/secrets.json', (1, 1))",
    "os.setxattr('OUT/secrets.json', 'user.x', b'1')",
    "os.remove('OUT/secrets.json')",
    "os.mkfifo('OUT/fifo')",
    "os.symlink('/etc', 'OUT/link')",
    "open('own', 'w').close()\nos.rename('own', 'OUT/own')",
    "open('own', 'w').close()\nos.link('own', 'OUT/own')",
    "open(SITE + '/attack.pth', 'w').write('import os')",
    "open(SITE + '/sitecustomize.py', 'w').write('')",
    "open(LIBRARY + '/attack.py', 'w').write('')",
)


def _fill(code: str, outside: Path) -> str:
    site = next(path for path in sys.path if path.endswith("site-packages"))
    return (
        code.replace("OUT", str(outside))
        .replace("PARENT", str(os.getpid()))
        .replace("SITE", repr(site))
        .replace("LIBRARY", repr(str(Path(json.__file__).parent)))
    )


@pytest.mark.parametrize("reach", ["apart", "network"])
@pytest.mark.parametrize("code", READ)
async def test_nothing_outside_is_read(worker: Bench, outside: Path, code: str, reach: str) -> None:
    found = await run(worker, _fill(code, outside), network=reach == "network")
    assert found.error is not None, found.data
    assert CANARY not in str(found)


@pytest.mark.parametrize("code", WRITE)
async def test_nothing_outside_is_changed(worker: Bench, outside: Path, code: str) -> None:
    before = _describe(outside)
    found = await run(worker, _fill(code, outside))
    assert found.error is not None, found.data
    assert _describe(outside) == before


def _describe(folder: Path) -> Any:
    status = (folder / "secrets.json").stat()
    about = (status.st_mode, status.st_size, status.st_mtime, folder.stat().st_mode)
    return (
        about,
        sorted(path.name for path in folder.iterdir()),
        (folder / "secrets.json").read_text(),
    )


@pytest.fixture
def segment() -> Iterator[Path]:
    """A file in the machine's shared memory, where tiers of payloads keep theirs."""
    path = Path("/dev/shm/noetl-canary")  # noqa: S108 - as said above
    path.write_text(CANARY)
    yield path
    path.unlink()


async def test_shared_memory_is_the_tasks_own(worker: Bench, segment: Path) -> None:
    code = f"open('{segment}', 'x').write('x')\nreturn os.listdir('{segment.parent}')"
    found = await run(worker, code)
    assert found.error is not None or found.data == [segment.name]
    assert segment.read_text() == CANARY  # noqa: ASYNC240 - nothing else runs in the test


async def test_workspaces_of_other_tasks_are_out_of_sight(worker: Bench) -> None:
    kept = await run(worker, "open('mine', 'w').write('x')\nreturn os.getcwd()")
    for place in ("", "/.."):
        code = f"return os.listdir({kept.data + place!r})"
        other = await run(worker, code, tenant="other")
        assert other.error is not None or Path(kept.data).name not in other.data


@pytest.mark.parametrize(
    "path", ["/etc/shadow", "/etc/ssl/private", "/root", "/var", "/run", "/mnt"]
)
async def test_folders_of_the_machine_are_not_there(worker: Bench, path: str) -> None:
    code = f"p = {path!r}\nreturn os.listdir(p) if os.path.isdir(p) else open(p, 'r+').read()"
    found = await run(worker, code)
    # Of a folder on the way to the interpreter only the next one is seen.
    ways = {part for known in sys.path for part in Path(known).parts}
    assert found.error is not None or set(found.data) <= ways


async def test_a_task_has_what_it_needs(worker: Bench) -> None:
    code = """
import ssl, socket, tempfile, zoneinfo, sqlite3, subprocess, multiprocessing, shutil
with tempfile.NamedTemporaryFile('w+') as f:
    f.write('x')
os.makedirs('a/b'); open('a/f', 'w').write('x'); os.rename('a/f', 'a/b/f')
shutil.move('a/b/f', 'f')
ssl.create_default_context()
base = sqlite3.connect('base.db'); base.execute('create table t (i int)'); base.close()
queue = multiprocessing.get_context('fork').Queue()
queue.put(os.cpu_count())
one, other = socket.socketpair()
open('/dev/null', 'w').write('x')
said = subprocess.check_output(['/bin/echo', 'x']).decode()
is_own = os.path.exists('/proc/self/status')
return [str(zoneinfo.ZoneInfo('Europe/Berlin')), said, queue.get() > 0, len(os.urandom(4)), is_own]
"""
    found = await run(worker, code)
    assert found.data == ["Europe/Berlin", "x\n", True, 4, True], found.error


async def test_a_file_outside_is_told_with_the_setting_that_allows_it(
    worker: Bench, outside: Path
) -> None:
    found = await run(worker, f"open('{outside}/secrets.json')")
    assert found.error is not None
    assert "NOETL_WORKER_TASK_FOLDERS" in found.error.message


@pytest.mark.parametrize(
    "script",
    [
        "cat OUT/secrets.json",
        "echo x > OUT/secrets.json",
        "ls OUT",
        "ln -s OUT o; cat o/secrets.json",
    ],
)
async def test_scripts_see_nothing_outside(worker: Bench, outside: Path, script: str) -> None:
    before = _describe(outside)
    found = await worker.tools.run(call_of("shell", {"cmds": _fill(script, outside)}))
    assert found.error is not None, found.data
    assert CANARY not in str(found)
    assert _describe(outside) == before
