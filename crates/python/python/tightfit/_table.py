"""The base of all results: rows for pandas, a table of 80 columns for a terminal, and a page for a notebook."""

from __future__ import annotations

import base64
import functools
import re
import textwrap
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pandas import DataFrame

#: Rows that a notebook shows; the frame has all.
MOST_ROWS = 24
#: A number, perhaps with its unit, or nothing.
NUMBER = re.compile(r"([\d.]+( [^\W\d]+)?)?")


def time(time_us: float | None) -> str:
    """A time for people."""
    if time_us is None:
        return "nothing fits"
    return f"{time_us / 1000:.2f} ms" if time_us >= 1000 else f"{time_us:.1f} µs"


def size(count: int | None, *, enough: bool = False, digits: int = 1) -> str:
    """A number of bytes for people, with decimals; rounded up where it is ``enough`` only then."""
    if count is None:
        return "unlimited"
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            number = -(-count * 10**digits // unit) / 10**digits if enough else count / unit
            return f"{number:.{digits}f} {name}"
    return f"{count} B"


#: A number of bytes in a sentence.
text = functools.partial(size, digits=2)


def data_frame(rows: Sequence[dict[str, Any]]) -> DataFrame:
    """The rows as a pandas frame.

    Raises
    ------
    ImportError
        If pandas is not installed.
    """
    try:
        from pandas import DataFrame
    except ImportError as error:
        raise ImportError(f"frames need pandas; install it with `pip install pandas` ({error})") from error
    return DataFrame(rows)


class Table:
    """A result with rows, and perhaps a picture."""

    def _rows(self) -> list[dict[str, Any]]:
        """One dictionary per row, with units in the names of the columns."""
        raise NotImplementedError

    def _shown(self) -> list[dict[str, str]]:
        """The rows for display, with units after the values."""
        raise NotImplementedError

    def _picture(self) -> str:
        """An SVG document; empty by default."""
        return ""

    def frame(self) -> DataFrame:
        """The rows as a pandas frame: times in µs (``_us``), sizes in bytes (``_bytes``).

        Raises
        ------
        ImportError
            If pandas is not installed.
        """
        return data_frame(self._rows())

    def table(self, width: int = 80) -> str:
        """The rows as text for a terminal; cells are cut so that no line is longer than ``width`` columns."""
        return f"{textwrap.fill(repr(self), width)}\n\n{_text(self._shown(), width)}"

    def _repr_html_(self) -> str:
        """A table and the picture, in the notebook's own colors. The picture has its own background."""
        rows = self._shown()
        shown = rows[:MOST_ROWS]
        parts = [f"<p>{escape(repr(self))}</p>", _html(shown)]
        if len(rows) > len(shown):
            parts.append(f"<p>and {len(rows) - len(shown)} more; <code>.frame()</code> has all</p>")
        if picture := self._picture():
            # As an image, so that its styles stay inside it.
            data = base64.b64encode(picture.encode()).decode()
            parts.append(
                f'<img alt="{escape(repr(self))}" style="max-width: 100%; height: auto" src="data:image/svg+xml;base64,{data}"/>'
            )
        return "<div>" + "".join(parts) + "</div>"


def _html(rows: list[dict[str, str]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{escape(column)}</th>" for column in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row.values()) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"


def _text(rows: list[dict[str, str]], width: int) -> str:
    """Aligned columns. Where they are too wide, the widest is cut first."""
    if not rows:
        return "no rows\n"
    columns = list(rows[0])
    widths = {column: max(len(column), *(len(row[column]) for row in rows)) for column in columns}
    while sum(widths.values()) + 2 * (len(columns) - 1) > width:
        widest = max(widths, key=lambda column: widths[column])
        if widths[widest] <= 1:
            break
        widths[widest] -= 1
    is_number = {column: all(NUMBER.fullmatch(row[column]) for row in rows) for column in columns}

    def line(cells: dict[str, str]) -> str:
        def cell(column: str) -> str:
            text = _cut(cells[column], widths[column])
            return text.rjust(widths[column]) if is_number[column] else text.ljust(widths[column])

        return "  ".join(cell(column) for column in columns).rstrip()[:width] + "\n"

    return line({column: column for column in columns}) + "".join(line(row) for row in rows)
