"""Tables for notebooks; the type itself lives below, where every module may use it."""

from __future__ import annotations

from ..tables import Table, html_table, text_table

__all__ = ["Table", "html_table", "text_table"]
