from pathlib import Path

import pytest

from noetl_cli.errors import StackError
from noetl_cli.stack.home_folder.data_locations import check_data_locations, write_data_locations
from noetl_cli.stack.home_folder.home import StackHome
from noetl_cli.stack.home_folder.options import StackOptions

STORE = "s3://key:secret@one.example:9000/payloads?region=x"


@pytest.mark.parametrize(
    ("former", "next_"),
    [
        (StackOptions(), StackOptions(workers=4)),
        (
            StackOptions(payload_url=STORE),
            StackOptions(payload_url=STORE.replace("secret", "rotated")),
        ),
        # Another ledger refers to nothing of the former store.
        (StackOptions(has_s3=False), StackOptions(postgres_dsn="host=db password=p")),
    ],
)
def test_the_former_store_is_taken(
    tmp_path: Path, former: StackOptions, next_: StackOptions
) -> None:
    home = StackHome(root=tmp_path)
    check_data_locations(home, former)
    write_data_locations(home, former)
    check_data_locations(home, next_)
    assert "secret" not in home.data_locations_file.read_text()


@pytest.mark.parametrize(
    ("former", "next_", "way_out"),
    [
        (StackOptions(has_s3=False), StackOptions(), "Start it with --no-s3,"),
        (
            StackOptions(),
            StackOptions(has_s3=False),
            "Start it with neither --no-s3 nor --payload,",
        ),
        (
            StackOptions(payload_url=STORE),
            StackOptions(payload_url="s3://two.example/payloads"),
            "Start it with --payload s3://one.example:9000/payloads,",
        ),
    ],
)
def test_another_store_is_refused(
    tmp_path: Path, former: StackOptions, next_: StackOptions, way_out: str
) -> None:
    home = StackHome(root=tmp_path)
    write_data_locations(home, former)
    with pytest.raises(StackError) as refused:
        check_data_locations(home, next_)
    assert refused.value.way_out.startswith(way_out)


def test_a_damaged_record_is_told(tmp_path: Path) -> None:
    home = StackHome(root=tmp_path)
    home.data_locations_file.write_text("{")
    with pytest.raises(StackError, match="cannot be read"):
        check_data_locations(home, StackOptions())
