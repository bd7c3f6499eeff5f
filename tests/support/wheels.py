"""Wheels of packages that exist in a test alone."""

import zipfile
from hashlib import sha256
from pathlib import Path


def write_wheel(
    folder: Path, name: str, version: str, source: str, *, needs: tuple[str, ...] = ()
) -> str:
    """Write a wheel with one module of the package's name; return its hash for a requirement."""
    info = f"{name}-{version}.dist-info"
    requires = "".join(f"Requires-Dist: {one}\n" for one in needs)
    files = {
        f"{name}.py": source,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}",
        f"{info}/WHEEL": (
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        ),
    }
    record = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for inside, text in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(inside, text)
    return f"--hash=sha256:{sha256(path.read_bytes()).hexdigest()}"
