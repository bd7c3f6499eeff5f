"""What may import what: the linter's contracts, and what it cannot see."""

import ast
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Members whose code a member may use must stand in its own manifest.
MEMBER_BY_PACKAGE = {
    path.name: path.parents[1]
    for top in ("libs", "services", "workloads")
    for path in sorted((ROOT / top).glob("*/src/*"))
    if path.is_dir() and path.name.startswith("noetl_")
} | {"noetl_cli": ROOT / "cli"}
SDK_HOME = "libs/chassis/src/noetl_chassis/telemetry.py"

# Where a library may be imported: one folder or module a purpose.
HOMES_BY_LIBRARY = {
    "adbc_driver_manager": {"noetl_worker.spark.postgres"},
    "adbc_driver_postgresql": {"noetl_worker.spark.postgres"},
    "aiohttp": {
        "noetl_chassis.health",
        "noetl_messaging.openlineage",
        "noetl_pft",
        "noetl_planner.identity.openid.oidc_provider",
        "noetl_worker.tools.container",
    },
    "asyncpg": {
        "noetl_storage.postgres",
        "noetl_worker.spark.postgres",
        "noetl_worker.tools.credential_test",
        "noetl_worker.tools.postgres",
        "noetl_cli.stack",
        "noetl_pft",
    },
    "azure": {"noetl_storage.payloads.azure"},
    "boto3": {"noetl_storage.payloads", "noetl_worker.keychain", "noetl_worker.spark.grants"},
    "cryptography": {"noetl_chassis.seals"},
    "duckdb": {"noetl_worker.tools.duckdb", "noetl_worker.tools.tables.row_checks"},
    "google": {"noetl_storage.payloads.gcs"},
    "joserfc": {"noetl_planner.identity"},
    "keyring": {"noetl_cli.identity"},
    "litestar": {"noetl_planner.api"},
    "nats": {
        "noetl_messaging.jetstream",
        "noetl_worker.tools.credential_test",
        "noetl_worker.tools.nats",
    },
    "py4j": {"noetl_worker.spark"},
    "pycurl": {"noetl_storage.payloads", "noetl_storage.process.curl", "noetl_worker.tools.http"},
    "pyspark": {"noetl_worker.spark"},
    "urllib3": {
        "noetl_cli.identity",
        "noetl_cli.planner",
        "noetl_storage.payloads",
        "noetl_worker.tools",
    },
    "uvicorn": {"noetl_planner.api"},
}


@cache
def imported(path: Path) -> list[tuple[int, str]]:
    """Return what a file imports, with its lines."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append((node.lineno, node.module))
    return found


def test_the_import_contracts_are_kept() -> None:
    script = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(  # noqa: S603 - our own tool on our own tree
        [script, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    _, _, contracts = done.stdout.partition("Broken contracts")
    assert done.returncode == 0, contracts or done.stdout + done.stderr


def test_a_library_is_imported_in_its_homes_alone() -> None:
    strays = []
    for package, member in MEMBER_BY_PACKAGE.items():
        for path in sorted((member / "src" / package).rglob("*.py")):
            module = ".".join(path.relative_to(member / "src").with_suffix("").parts)
            for line, name in imported(path):
                homes = HOMES_BY_LIBRARY.get(name.split(".")[0], {package})
                if not any(f"{module}.".startswith(f"{home}.") for home in homes):
                    strays.append(f"{path.relative_to(ROOT)}:{line} {name}")
    assert not strays, f"these belong to other folders (HOMES_BY_LIBRARY): {strays}"


def test_every_member_declares_the_members_it_imports() -> None:
    undeclared = []
    for package, member in MEMBER_BY_PACKAGE.items():
        manifest = tomllib.loads((member / "pyproject.toml").read_text())
        declared = {
            name.split("[")[0].split(">")[0].strip().replace("-", "_")
            for name in manifest["project"]["dependencies"]
        }
        for path in sorted((member / "src" / package).rglob("*.py")):
            for line, name in imported(path):
                root = name.split(".")[0]
                if root in MEMBER_BY_PACKAGE and root not in declared | {package}:
                    undeclared.append(f"{path.relative_to(ROOT)}:{line} {root}")
    assert not undeclared, f"add it to the member's pyproject.toml, or do not use it: {undeclared}"


def test_the_telemetry_sdk_has_one_home() -> None:
    strays = [
        f"{path.relative_to(ROOT)}:{line}"
        for member in MEMBER_BY_PACKAGE.values()
        for path in sorted((member / "src").rglob("*.py"))
        for line, name in imported(path)
        if name.startswith("opentelemetry.sdk") and str(path.relative_to(ROOT)) != SDK_HOME
    ]
    assert not strays, f"libraries use the OpenTelemetry API; the process configures it: {strays}"


def test_no_decision_can_reach_a_projection() -> None:
    planner = ROOT / "services/planner/src/noetl_planner"
    readers = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in [
            planner / "service.py",
            *(
                path
                for folder in ("domain", "facts", "loops", "shards")
                for path in (planner / folder).rglob("*.py")
            ),
        ]
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.Name) and node.id == "Projections")
        or (isinstance(node, ast.Attribute) and node.attr == "projections")
    ]
    assert not readers, f"decide from the folded history; a projection may lag: {readers}"


@pytest.mark.parametrize("service", ["planner", "projector", "reaper", "outbox", "worker"])
def test_what_is_needed_rarely_is_loaded_when_it_is_needed(service: str) -> None:
    large = {"pyarrow", "numpy", "duckdb", "sqlglot", "obstore", "boto3", "botocore"}
    code = f"import sys, noetl_{service}.__main__; print(*({large} & sys.modules.keys()))"
    done = subprocess.run(  # noqa: S603 - our own interpreter and module
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout.strip(), done.returncode) == ("", 0), done.stderr


@pytest.mark.parametrize("service", ["projector", "reaper", "outbox"])
def test_what_opens_no_secret_begins_without_ciphers(service: str) -> None:
    code = f"import sys, noetl_{service}.__main__; print('cryptography' in sys.modules)"
    done = subprocess.run(  # noqa: S603 - our own interpreter and module
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.returncode) == ("False", 0), done.stderr
