from pathlib import Path

import pytest

from noetl_cli.failures import StackError
from noetl_cli.stack.data_places import check_places, write_places
from noetl_cli.stack.home import Home
from noetl_cli.stack.options import Options

STORE = "s3://key:secret@one.example:9000/payloads?region=x"


@pytest.mark.parametrize(
    ("former", "next_"),
    [
        (Options(), Options(workers=4)),
        (Options(payload_url=STORE), Options(payload_url=STORE.replace("secret", "rotated"))),
        # Another ledger refers to nothing of the former store.
        (Options(has_s3=False), Options(postgres_dsn="host=db password=p")),
    ],
)
def test_the_former_store_is_taken(tmp_path: Path, former: Options, next_: Options) -> None:
    home = Home(root=tmp_path)
    check_places(home, former)
    write_places(home, former)
    check_places(home, next_)
    assert "secret" not in home.data_places.read_text()


@pytest.mark.parametrize(
    ("former", "next_", "way_out"),
    [
        (Options(has_s3=False), Options(), "Start it with --no-s3,"),
        (Options(), Options(has_s3=False), "Start it with neither --no-s3 nor --payload,"),
        (
            Options(payload_url=STORE),
            Options(payload_url="s3://two.example/payloads"),
            "Start it with --payload s3://one.example:9000/payloads,",
        ),
    ],
)
def test_another_store_is_refused(
    tmp_path: Path, former: Options, next_: Options, way_out: str
) -> None:
    home = Home(root=tmp_path)
    write_places(home, former)
    with pytest.raises(StackError) as refused:
        check_places(home, next_)
    assert refused.value.way_out.startswith(way_out)


def test_a_damaged_record_is_told(tmp_path: Path) -> None:
    home = Home(root=tmp_path)
    home.data_places.write_text("{")
    with pytest.raises(StackError, match="cannot be read"):
        check_places(home, Options())
