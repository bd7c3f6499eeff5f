"""A type that several threads use for the first time at once is learned by one of them."""

import subprocess
import sys

# In a process of its own: what goes wrong here ends it.
SCRIPT = """
import sys, threading
import msgspec
from noetl_contracts import codec

sys.setswitchinterval(1e-6)
for turn in range(60):
    fields = [(f"f{place}", "dict[str, list[int]] | None", None) for place in range(20)]
    parts = [msgspec.defstruct(f"Part{turn}_{n}", fields) for n in range(6)]
    whole = msgspec.defstruct(f"Whole{turn}", [(f"g{n}", part) for n, part in enumerate(parts)])
    value = {f"g{n}": {f"f{place}": {"a": [1]} for place in range(20)} for n in range(6)}
    together = threading.Barrier(4)

    def convert():
        together.wait()
        codec.convert_value(value, whole)

    threads = [threading.Thread(target=convert) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_threads_may_use_a_type_for_the_first_time_at_once() -> None:
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", SCRIPT], check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
