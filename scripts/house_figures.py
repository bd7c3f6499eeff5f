"""Figures of how the code and the docs read: `python -m scripts.house_figures`.

The last step of `make lint` prints the figures and fails where one is worse than its limit in
`house_figures.toml`. `--list FIGURE` names the places behind one figure.
"""

import argparse
import ast
import gc
import re
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
HARD_WORDS = frozenset(TABLE["words"]["hard"].split())
NOUNS_IN_ING = frozenset(TABLE["words"]["nouns_in_ing"].split())
CODE_FOLDERS = ("libs", "services", "cli", "workloads")
FILE_LINES_MAX = 600
# `--list` names functions that are longer, and folders that have more files.
LONG_FUNCTION_LINES = 50
BIG_FOLDER_FILES = 16
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
WORD = re.compile(r"[a-z']+")
SAMPLE = re.compile(r"^```[a-z].*?^```", re.DOTALL | re.MULTILINE)


class Figure(NamedTuple):
    """A count or a share, and the places that it comes from."""

    name: str
    value: float
    places: list[str]


class Module(NamedTuple):
    """A module of the product: its place below the root, its text and its syntax tree."""

    place: str
    text: str
    tree: ast.Module


def measure_tree(root: Path) -> list[Figure]:
    """Measure every figure of a checkout."""
    modules = list(python_modules(root))
    return [
        *measure_functions(modules),
        *measure_files(modules),
        *measure_imports(root, modules),
        *measure_words(modules, documents(root)),
    ]


def python_modules(root: Path) -> Iterator[Module]:
    """Read the modules of the product, without tests."""
    for folder in CODE_FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            place = path.relative_to(root)
            if not any(part.startswith(".") or part in {"tests", "build"} for part in place.parts):
                text = path.read_text()
                yield Module(place.as_posix(), text, ast.parse(text))


def documents(root: Path) -> dict[str, str]:
    """Read the pages of the root and of `docs`, by their place."""
    paths = [*sorted(root.glob("*.md")), *sorted((root / "docs").rglob("*.md"))]
    return {path.relative_to(root).as_posix(): path.read_text() for path in paths}


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Walk the statements and handlers below a node; expressions are left out, to be quick."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        below = getattr(node, field, None)
        for statement in below if isinstance(below, list) else ():
            yield statement
            yield from statements(statement)


def measure_functions(modules: list[Module]) -> Iterator[Figure]:
    """Measure the names and lengths of all functions but `__those__` of Python's protocols."""
    lengths, names, one_word, long = [], [], [], []
    for module in modules:
        for node in statements(module.tree):
            if not isinstance(node, FUNCTION) or node.name.startswith("__"):
                continue
            name = node.name.strip("_")
            place = f"{module.place}:{node.lineno} {node.name}"
            lengths.append((node.end_lineno or node.lineno) - node.lineno + 1)
            names.append(len(name))
            if "_" not in name:
                one_word.append(place)
            if lengths[-1] > LONG_FUNCTION_LINES:
                long.append(f"{place} {lengths[-1]}")
    count = max(1, len(names))
    yield Figure("one-word-functions-percent", 100 * len(one_word) / count, one_word)
    yield Figure("mean-function-name", sum(names) / count, [])
    yield Figure("function-lines-p90", ninth_decile(lengths), long)
    yield Figure("function-lines-max", max(lengths, default=0), long)


def ninth_decile(values: Iterable[int]) -> int:
    """Find the value that nine of ten do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))] if ordered else 0


def measure_files(modules: list[Module]) -> Iterator[Figure]:
    """Measure the lengths and names of files, and how many share a folder."""
    lines = {module.place: module.text.count("\n") for module in modules}
    folders = Counter(place.rpartition("/")[0] for place in lines)
    big = [f"{folder} {n}" for folder, n in folders.most_common() if n > BIG_FOLDER_FILES]
    gerunds = [place for place in lines if is_gerund(Path(place).stem)]
    long = [f"{place} {count}" for place, count in lines.items() if count > FILE_LINES_MAX]
    broad = [place for module in modules for place in broad_excepts(module)]
    total = sum(lines.values())
    yield Figure("lines-per-file", total / max(1, len(lines)), [])
    yield Figure("ing-modules", len(gerunds), gerunds)
    yield Figure("files-per-folder-p90", ninth_decile(folders.values()), big)
    yield Figure("files-per-folder-max", max(folders.values(), default=0), big)
    yield Figure("files-over-600-lines", len(long), long)
    yield Figure("broad-excepts-per-1000-lines", 1000 * len(broad) / max(1, total), broad)


def is_gerund(stem: str) -> bool:
    """Tell whether a module is named for an activity instead of for a thing."""
    return stem.endswith("ing") and stem.rpartition("_")[2] not in NOUNS_IN_ING


def broad_excepts(module: Module) -> Iterator[str]:
    """Name the handlers that catch every error."""
    for node in statements(module.tree):
        if isinstance(node, ast.ExceptHandler):
            caught = ast.unparse(node.type) if node.type else "BaseException"
            if caught in {"Exception", "BaseException"}:
                yield f"{module.place}:{node.lineno}"


def measure_imports(root: Path, modules: list[Module]) -> Iterator[Figure]:
    """Measure the import contracts, and the loops of packages that import one another."""
    text = (root / ".importlinter").read_text()
    contracts = re.findall(r"^\[importlinter:contract:(.+)\]", text, re.MULTILINE)
    loops = import_loops(package_imports(modules))
    yield Figure("import-contracts", len(contracts), contracts)
    yield Figure("package-cycles", len(loops), loops)


def package_imports(modules: list[Module]) -> dict[str, set[str]]:
    """Map each package to the packages that its modules import while they are loaded."""
    trees = {
        module.place.split("/src/", 1)[1].removesuffix(".py").replace("/", "."): module.tree
        for module in modules
        if "/src/" in module.place
    }
    packages = {name.removesuffix(".__init__"): name.rpartition(".")[0] for name in trees}
    imports: dict[str, set[str]] = defaultdict(set)
    for name, tree in trees.items():
        package = name.rpartition(".")[0]
        for node in tree.body:
            targets = {alias.name for alias in getattr(node, "names", ())}
            if isinstance(node, ast.ImportFrom) and node.module:
                targets = {node.module, *(f"{node.module}.{name}" for name in targets)}
            imports[package].update(packages[target] for target in targets if target in packages)
        imports[package].discard(package)
    return imports


def import_loops(imports: dict[str, set[str]]) -> list[str]:
    """Find the loops of a graph of imports, each as the path that closes it."""
    loops: set[str] = set()
    path: list[str] = []
    visited_packages: set[str] = set()

    def visit(package: str) -> None:
        path.append(package)
        for target in sorted(imports.get(package, ())):
            if target in path:
                loops.add(" -> ".join([*path[path.index(target) :], target]))
            elif target not in visited_packages:
                visit(target)
        visited_packages.add(path.pop())

    for package in sorted(imports):
        if package not in visited_packages:
            visit(package)
    return sorted(loops)


def measure_words(modules: list[Module], pages: dict[str, str]) -> Iterator[Figure]:
    """Measure hard words in code and in prose, and the length and the samples of the pages."""
    samples = sum(len(SAMPLE.findall(page)) for page in pages.values())
    # A sample leaves its line ends: the numbers of later lines stay right.
    prose = [
        (place, SAMPLE.sub(lambda sample: "\n" * sample[0].count("\n"), page))
        for place, page in pages.items()
    ]
    words = sum(len(text.split()) for _, text in prose)
    in_code = [place for module in modules for place in hard_words(module.place, module.text)]
    in_docs = [place for page in prose for place in hard_words(*page)]
    yield Figure("hard-words-in-code", len(in_code), in_code)
    yield Figure("hard-words-in-docs", len(in_docs), in_docs)
    yield Figure("doc-words", words, [])
    yield Figure("samples-per-1000-doc-words", 1000 * samples / max(1, words), [])


def hard_words(place: str, text: str) -> Iterator[str]:
    """Name each hard word of a text with its line, in comments, strings and names alike."""
    for number, line in enumerate(text.lower().splitlines(), 1):
        for word in WORD.findall(line):
            if word in HARD_WORDS:
                yield f"{place}:{number} {word}"


def is_worse(figure: Figure, limits: dict[str, dict[str, float]]) -> bool:
    """Compare a figure, rounded as it is printed, with its limit."""
    value, least = round(figure.value, 2), limits["at_least"].get(figure.name)
    return value > limits["at_most"][figure.name] if least is None else value < least


def main(words: list[str]) -> int:
    """Print the table or the places of one figure; return 1 if a figure is worse than its limit."""
    options = argparse.ArgumentParser(prog="python -m scripts.house_figures", description=__doc__)
    options.add_argument("root", nargs="?", type=Path, default=ROOT, help="the checkout to measure")
    names = [*TABLE["at_least"], *TABLE["at_most"]]
    options.add_argument("--list", choices=names, help="name the places behind one figure")
    chosen = options.parse_args(words)
    figures = {figure.name: figure for figure in measure_tree(chosen.root)}
    if chosen.list:
        print("\n".join(figures[chosen.list].places))
        return 0
    for name, figure in figures.items():
        side = "at_least" if name in TABLE["at_least"] else "at_most"
        limit = f"{side.replace('_', ' ')} {TABLE[side][name]:g}"
        print(f"{name:<30}{figure.value:>10.6g}   {limit}{'   WORSE' * is_worse(figure, TABLE)}")
    worse = [name for name, figure in figures.items() if is_worse(figure, TABLE)]
    if worse:
        print(f"worse than the limit: {', '.join(worse)}. `--list FIGURE` names the places.")
    return 1 if worse else 0


if __name__ == "__main__":
    # Parsing leaves no garbage: looking for it would take two thirds of the time.
    gc.disable()
    sys.exit(main(sys.argv[1:]))
