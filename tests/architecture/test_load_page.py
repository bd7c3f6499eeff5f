"""The page of loads shows what was found."""

from tests.load.page import JSON_FILE, PAGE_FILE, SECTIONS, page, read


def test_the_page_of_loads_shows_what_was_found() -> None:
    found = read()
    assert set(found) <= set(SECTIONS)
    assert PAGE_FILE.read_text() == page(found), "python -m tests.load soak --page"
    assert JSON_FILE.exists()
