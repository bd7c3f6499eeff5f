"""Statements have names, homes and users."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
POSTGRES = ROOT / "libs/storage/src/noetl_storage/postgres"
HEADER = re.compile(r"^-- name: ([a-z][a-z0-9_]*) :(one|many|exec)$", re.MULTILINE)
USE = re.compile(r"_QUERIES\[\s*f?\"([a-z0-9_{}().]+)\"\s*\]", re.DOTALL)
SQL_WORDS = re.compile(
    r"\b(?:select\s.+\sfrom|insert\s+into|update\s+\w+\s+set|delete\s+from)\b", re.IGNORECASE
)
MODULES = {path.stem: path for path in sorted(POSTGRES.rglob("*.py"))}


def files() -> list[Path]:
    return sorted((POSTGRES / "sql").glob("*.sql"))


def test_every_statement_stands_beside_its_module() -> None:
    orphans = [path.name for path in files() if path.stem not in MODULES]
    assert not orphans, f"give it a module of the same stem: {orphans}"


def test_every_statement_is_defined_once_and_used() -> None:
    for path in files():
        defined = [name for name, _ in HEADER.findall(path.read_text())]
        assert len(defined) == len(set(defined)), f"{path.name} names a statement twice"
        used = USE.findall(MODULES[path.stem].read_text())
        patterns = [re.compile(re.sub(r"\{[^}]*\}", "[a-z_]+", name)) for name in used]
        unused = [n for n in defined if not any(p.fullmatch(n) for p in patterns)]
        assert not unused, f"{path.name}: remove what nobody calls: {unused}"
        undefined = [
            name
            for name, pattern in zip(used, patterns, strict=True)
            if not any(pattern.fullmatch(known) for known in defined)
        ]
        assert not undefined, f"{path.name} lacks {undefined}"


def test_every_statement_says_what_it_does() -> None:
    for path in files():
        for part in re.split(HEADER, path.read_text())[3::3]:
            assert part.lstrip().startswith("--"), (
                f"{path.name}: explain in a sentence: {part[:60]}"
            )


def test_migrations_are_numbered_without_a_gap() -> None:
    numbers = sorted(int(path.name[:4]) for path in (POSTGRES / "migrations").glob("*.sql"))
    assert numbers == list(range(1, len(numbers) + 1))


def test_no_statement_is_built_in_python() -> None:
    built = []
    for path in sorted((ROOT / "libs").glob("*/src/**/*.py")) + sorted(
        (ROOT / "services").glob("*/src/**/*.py")
    ):
        for line, text in enumerate(path.read_text().splitlines(), start=1):
            if SQL_WORDS.search(text) and ('f"' in text or "f'" in text):
                built.append(f"{path.relative_to(ROOT)}:{line}")
    assert not built, f"put it into a .sql file, with parameters: {built}"
