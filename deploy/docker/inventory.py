"""What an image holds, said by its own Python.

inventory.py needs WHEELS MEMBER            which wheels of a folder a member needs, one a line
inventory.py write IMAGE VERSION FOLDER     a CycloneDX document, and whose licences
"""

import json
import re
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

NEED = re.compile(r"^Requires-Dist: (noetl-[a-z]+)[^;\n]*$", re.MULTILINE)


def read_needs(wheel: Path) -> list[str]:
    """List what a member needs of this release, leaving extras aside."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return NEED.findall(archive.read(name).decode())


def list_needs(folder: Path, member: str) -> list[Path]:
    """List the wheels of a member and of all that it needs."""
    wheels = {wheel.name.split("-")[0].replace("_", "-"): wheel for wheel in folder.glob("*.whl")}
    waiting, taken = [member], dict[str, Path]()
    while waiting:
        name = waiting.pop()
        if name not in taken:
            taken[name] = wheels[name]
            waiting += read_needs(wheels[name])
    return list(taken.values())


def read_licence(found: metadata.Distribution) -> str:
    """Name a licence as its package does."""
    told = found.metadata
    named = told.get("License-Expression") or told.get("License") or ""
    classes = [
        line.rpartition("::")[2].strip()
        for line in told.get_all("Classifier") or []
        if line.startswith("License ::")
    ]
    first = named.strip().splitlines()[0][:100] if named.strip() else ""
    return first or ", ".join(classes) or "see its files"


def describe_package(found: metadata.Distribution) -> dict[str, Any]:
    """Describe one package as a component."""
    name, version = found.metadata["Name"], found.version
    address = f"pkg:pypi/{name.lower().replace('_', '-')}@{version}"
    return {
        "type": "library",
        "bom-ref": address,
        "name": name,
        "version": version,
        "purl": address,
        "licenses": [{"license": {"name": read_licence(found)}}],
    }


def write_inventory(image: str, version: str, folder: Path) -> None:
    """Write both files."""
    found = sorted(metadata.distributions(), key=lambda each: each.metadata["Name"].lower())
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": image, "version": version}},
        "components": [describe_package(each) for each in found],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sbom.cdx.json").write_text(json.dumps(document, indent=1))
    lines = [f"{each.metadata['Name']} {each.version}: {read_licence(each)}" for each in found]
    (folder / "licences.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    verb, *arguments = sys.argv[1:]
    if verb == "needs":
        sys.stdout.write("\n".join(map(str, list_needs(Path(arguments[0]), arguments[1]))) + "\n")
    else:
        write_inventory(arguments[0], arguments[1], Path(arguments[2]))
