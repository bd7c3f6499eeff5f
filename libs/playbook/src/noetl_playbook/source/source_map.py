"""Maps the paths of a rewritten document to the paths at which its author wrote the values."""

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
        paths: dict[Path, Path] = {}
        for new, old in read_at.items():
            paths[new] = self.find_origin(old)
            for item, origin in self._get_section_moves(new).items():
                if item[: len(old)] == old and item != old:
                    paths[(*new, *item[len(old) :])] = origin
        for new in read_at:
            moves = self._get_section_moves(new)
            for item in [move for move in moves if move[: len(new)] == new]:
                del moves[item]
        for item, origin in paths.items():
            self._get_section_moves(item)[item] = origin

    def find_origin(self, path: Path) -> Path:
        """Find the path under which a value was written."""
        moves = self._moved.get(path[:2])
        for length in range(len(path), 0, -1) if moves else ():
            move = moves.get(path[:length]) if moves else None
            if move is not None:
                return (*move, *path[length:])
        return path
