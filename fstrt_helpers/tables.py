"""One table type: rows of named values that print as text and show as HTML in a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

__all__ = ["Table", "html_table", "text_table"]

Row = Mapping[str, Any]


def _columns(rows: Sequence[Row]) -> list[str]:
    """Every key of every row, in the order of first appearance."""
    return list(dict.fromkeys(key for row in rows for key in row))


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return str(value)


def text_table(rows: Sequence[Row]) -> str:
    """Lays rows out in columns of plain text, numbers to the right.

    Args:
        rows: One mapping per row; a key that a row lacks leaves its cell empty.

    Returns:
        Lines without trailing spaces; an empty string for no rows.
    """
    names = _columns(rows)
    if not names:
        return ""
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    numeric = [all(isinstance(row.get(n), (int, float, type(None))) for row in rows) for n in names]
    widths = [max(len(names[i]), *(len(line[i]) for line in cells)) for i in range(len(names))]

    def line(values: Sequence[str]) -> str:
        laid = [v.rjust(w) if right else v.ljust(w) for v, w, right in zip(values, widths, numeric, strict=True)]
        return "  ".join(laid).rstrip()

    return "\n".join([line(names), line(["-" * w for w in widths]), *map(line, cells)])


def html_table(rows: Sequence[Row]) -> str:
    """The same table as HTML, every value escaped."""
    names = _columns(rows)
    head = "".join(f"<th style='text-align:left'>{escape(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td style='text-align:left'>{escape(_cell(row.get(n)))}</td>" for n in names) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


@dataclass(frozen=True)
class Table:
    """Rows that know how to show themselves: ``print(table)`` or the last line of a cell."""

    rows: Sequence[Row]

    def __str__(self) -> str:
        return text_table(self.rows)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(self.rows)
