"""The doctor finds the Java that a worker's Spark would find."""

import stat
from pathlib import Path

import pytest

from noetl_chassis.java import find_java
from noetl_cli.stack import doctor
from noetl_cli.stack.home_folder import home
from noetl_cli.stack.processes.health_check import HealthCheck, Verdict


def java_check(tmp_path: Path, **environ: str) -> HealthCheck:
    checks = doctor.check_stack(home.make_home(tmp_path / "stack"), environ=environ)
    (health_check,) = (check for check in checks if check.name == "java")
    return health_check


def a_java(folder: Path, version: str) -> Path:
    program = folder / "bin/java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def test_the_java_of_the_wheel_is_found_where_the_machine_has_none(tmp_path: Path) -> None:
    found = java_check(tmp_path, PATH=str(tmp_path))
    java = find_java({"PATH": str(tmp_path)})
    assert (found.verdict, found.way_out) == (Verdict.OK, "")
    assert found.found == f"{java.version} at {java.program}"


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    old = a_java(tmp_path / "old", "1.8.0_392")
    found = java_check(tmp_path, JAVA_HOME=str(tmp_path / "old"), PATH=str(tmp_path))
    assert found.verdict is Verdict.OK
    assert str(old) not in found.found


def test_a_java_home_comes_first(tmp_path: Path) -> None:
    program = a_java(tmp_path / "new", "21.0.2")
    found = java_check(tmp_path, JAVA_HOME=str(tmp_path / "new"), PATH=str(tmp_path))
    assert (found.verdict, found.found) == (Verdict.OK, f"21 at {program}")


@pytest.mark.parametrize("version", ["25", "25.0.1", "25.0.2"])
def test_a_java_that_corrupts_data_is_passed_over(tmp_path: Path, version: str) -> None:
    corrupting = a_java(tmp_path / "new", version)
    assert find_java(places(tmp_path)).program != corrupting


@pytest.mark.parametrize("version", ["25.0.3", "25.1", "26", "17.0.11"])
def test_a_java_that_is_mended_is_taken(tmp_path: Path, version: str) -> None:
    mended = a_java(tmp_path / "new", version)
    assert find_java(places(tmp_path)).program == mended


def places(tmp_path: Path) -> dict[str, str]:
    return {"JAVA_HOME": str(tmp_path / "new"), "PATH": str(tmp_path)}
