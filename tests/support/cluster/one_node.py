"""A cluster of one real node with the images of this machine and the three servers."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from msgspec import Struct
from tests.support import containers
from tests.support.cluster import programs, servers
from tests.support.cluster.control_plane import ControlPlane
from tests.support.cluster.kubectl import Kubectl
from tests.support.cluster.node import Node
from tests.support.cluster.servers import Servers

SERVICES = tuple(f"noetl-{service}" for service in containers.SERVICES)


class OneNode(Struct, frozen=True, kw_only=True):
    """A cluster as tests use it."""

    plane: ControlPlane
    node: Node
    servers: Servers

    @property
    def kubectl(self) -> Kubectl:
        """Return the requests of its administrator."""
        return self.plane.kubectl


def find_obstacle() -> str:
    """Say why there is no cluster here; empty where one can be started."""
    images = (*servers.IMAGES, *SERVICES)
    return programs.find_obstacle() or containers.find_obstacle(images=images, is_composed=False)


@contextmanager
def start_cluster(folder: Path) -> Iterator[OneNode]:
    """Start everything, and end it after the block."""
    with ExitStack() as started:
        plane = ControlPlane(folder)
        started.callback(plane.stop)
        plane.start()
        node = Node(plane, folder / "node")
        started.callback(node.stop)
        node.start()
        for image in (*servers.IMAGES, *(f"{service}:latest" for service in SERVICES)):
            node.load_image(image)
        stack = Servers(plane.kubectl)
        stack.start()
        yield OneNode(plane=plane, node=node, servers=stack)
