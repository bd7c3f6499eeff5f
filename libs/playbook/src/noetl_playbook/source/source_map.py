"""Where what is read was written, after older constructs have been rewritten."""

from collections.abc import Mapping

from noetl_playbook.source.problems import Path


class SourceMap:
    """Leads from the path at which a value is read to the one at which it was written."""

    def __init__(self) -> None:
        # By step, or other entry of a root section: each is looked up by itself.
        self._moved: dict[Path, dict[Path, Path]] = {}

    def record_move(self, old: Path, new: Path) -> None:
        """Remember that what is read at `new` was written at `old`."""
        self._get_section_moves(new)[new] = self.find_origin(old)

    def _get_section_moves(self, path: Path) -> dict[Path, Path]:
        return self._moved.setdefault(path[:2], {})

    def record_moves(self, read_at: Mapping[Path, Path]) -> None:
        """Remember several moves at once: to each new path, with all below it, from an old one.

        Every path is below the same entry of a root section.
        """
        found: dict[Path, Path] = {}
        for new, old in read_at.items():
            found[new] = self.find_origin(old)
            for each, written in self._get_section_moves(new).items():
                if each[: len(old)] == old and each != old:
                    found[(*new, *each[len(old) :])] = written
        for new in read_at:
            moves = self._get_section_moves(new)
            for each in [each for each in moves if each[: len(new)] == new]:
                del moves[each]
        for each, written in found.items():
            self._get_section_moves(each)[each] = written

    def find_origin(self, path: Path) -> Path:
        """Find the path under which a value was written."""
        moves = self._moved.get(path[:2])
        for length in range(len(path), 0, -1) if moves else ():
            found = moves.get(path[:length]) if moves else None
            if found is not None:
                return (*found, *path[length:])
        return path
