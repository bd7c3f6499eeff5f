"""Which images tasks may run: patterns that an operator allows."""

import re
from fnmatch import fnmatchcase

from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.tools.container.names import SOURCE

IMAGES_SETTING = "NOETL_WORKER_CONTAINER_IMAGES"
_ANY = "*"
# A name as registries take it: parts, an optional tag, an optional digest.
_IMAGE = re.compile(r"[a-z0-9][A-Za-z0-9._:/-]{0,400}(@sha256:[0-9a-f]{64})?")


def check_image(image: str, patterns: tuple[str, ...]) -> str:
    """Return an image's name with its tag; raises `ToolFailure` unless a pattern allows it."""
    if not _IMAGE.fullmatch(image):
        text = f"field 'image': {image!r:.200} is not the name of an image"
        raise ToolFailure(build_error("validation", text, source=SOURCE))
    name = add_tag(image)
    if any(_is_match(name, pattern) and can_trust_digest(name, pattern) for pattern in patterns):
        return name
    allowed = ", ".join(patterns) or "none"
    text = (
        f"image {name!r:.200} is not allowed on this worker: {IMAGES_SETTING} allows {allowed}; "
        f"add it there, as in {IMAGES_SETTING}=python:*,registry.example/team/*"
    )
    raise ToolFailure(build_error("config", text, source=SOURCE))


def add_tag(image: str) -> str:
    """Write the tag that a name without one means."""
    if "@" in image or ":" in image.rpartition("/")[2]:
        return image
    return f"{image}:latest"


def can_trust_digest(name: str, pattern: str) -> bool:
    """Tell whether a pattern leaves the tag open, or names a digest: a digest wins over a tag."""
    tag = pattern.rpartition("/")[2].partition(":")[2]
    return "@" not in name or "@" in pattern or tag in ("", _ANY)


def _is_match(name: str, pattern: str) -> bool:
    if pattern == _ANY:
        return True
    if not pattern.endswith(_ANY):
        pattern = add_tag(pattern)
    # `python*` is no registry python.example.
    if ("/" in name) != ("/" in pattern):
        return False
    first, _, path = name.partition("/")
    pattern_first, _, pattern_path = pattern.partition("/")
    return fnmatchcase(first, pattern_first) and fnmatchcase(path, pattern_path)
