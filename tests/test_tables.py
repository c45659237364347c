"""The table type: alignment, gaps, escaping."""

from __future__ import annotations

from fstrt_helpers.show.tables import Table, html_table, text_table

ROWS = [{"stage": "slow", "ms": 1.23456}, {"stage": "codec decode", "ms": 12345.6, "note": "first"}]


def test_text_aligns_numbers_to_the_right_and_leaves_gaps() -> None:
    assert text_table(ROWS).splitlines() == [
        "stage             ms  note",
        "------------  ------  -----",
        "slow           1.235",
        "codec decode  12,346  first",
    ]


def test_html_escapes_what_it_shows() -> None:
    page = html_table([{"a<b": "<script>", "ok": True, "none": None}])
    assert "<script>" not in page
    assert "&lt;script&gt;" in page and "a&lt;b" in page and ">yes<" in page and "None" not in page


def test_no_rows_is_an_empty_table() -> None:
    assert text_table([]) == ""
    assert str(Table([])) == ""


def test_a_table_prints_as_text_and_shows_as_html() -> None:
    table = Table(ROWS)
    assert repr(table) == str(table) == text_table(ROWS)
    assert table._repr_html_() == html_table(ROWS)
