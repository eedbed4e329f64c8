"""Tables in a terminal: they fit its width without an empty column or a word cut to pieces; a pipe gets them whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stabilitybackend.cli.echo import printable

__all__ = ["Column", "print_table"]

#: Characters to which a cell and an id are shortened in their middle, and those of a line of a sentence at least.
SHORT, ID, SENTENCE = 20, 28, 28
#: Columns with a higher place are left out before an id is shortened, which other commands ask for.
MINOR = 5
#: Width of a table in a pipe or a file: nothing is cut or wrapped there.
ENDLESS = 100_000
#: Characters that a column takes for its frame, and a table for its edge.
_FRAME, _EDGE = 3, 1


@dataclass(frozen=True, slots=True)
class Column:
    """A column.

    Args:
        place: columns with the highest are left out first, where all of them do not fit; one with 0 never is.
        cells: ``whole``; ``short``: long ones are shortened in the middle where there is no room; ``id``: so, too, but
            only after minor columns are left out; ``sentence``: they wrap between words.
    """

    title: str
    place: int = 0
    cells: Literal["whole", "short", "id", "sentence"] = "whole"


def print_table(
    columns: Sequence[Column], rows: Sequence[Sequence[str | Text]], console: Console | None = None
) -> None:
    """Print a table.

    Args:
        rows: a cell for each column; a ``str`` is no markup.
        console: where to; standard output by default.
    """
    console = console or Console(highlight=False)
    if not console.is_terminal:
        console = Console(file=console.file, width=ENDLESS, highlight=False, color_system=None)
    cells = [[Text(printable(one)) if isinstance(one, str) else one for one in row] for row in rows]
    needs = [
        max([cell_len(column.title), *(cell_len(row[at].plain) for row in cells)]) for at, column in enumerate(columns)
    ]
    shown, widths = _fitted(columns, needs, console.width)
    table = Table()
    for at in shown:
        table.add_column(columns[at].title, no_wrap=columns[at].cells != "sentence")
    for row in cells:
        table.add_row(
            *(_shortened(row[at], widths[at]) if columns[at].cells != "sentence" else row[at] for at in shown)
        )
    console.print(table)
    left_out = [column.title for at, column in enumerate(columns) if at not in shown]
    if left_out:
        console.print(f"no room for {', '.join(left_out)}: widen the terminal, or take --json", style="dim")


def _fitted(columns: Sequence[Column], needs: Sequence[int], width: int) -> tuple[list[int], list[int]]:
    """Return the columns that fit, in their order, and the characters of each of all columns."""
    shown, widths = list(range(len(columns))), list(needs)

    def too_wide() -> int:
        return sum(widths[at] + _FRAME for at in shown) + _EDGE - width

    def shorten(**least: int) -> None:
        for at in shown:
            if (over := too_wide()) > 0 and columns[at].cells in least:
                widths[at] = max(min(least[columns[at].cells], widths[at]), widths[at] - over)

    def leave_out(above: int) -> None:
        for at in sorted(shown, key=lambda at: -columns[at].place):
            if too_wide() > 0 and columns[at].place > above:
                shown.remove(at)

    shorten(short=SHORT, sentence=SENTENCE)
    leave_out(MINOR)
    shorten(id=ID)
    leave_out(0)
    shorten(id=SHORT, whole=SHORT)  # the least content, in a terminal that is narrower than that
    return shown, widths


def _shortened(cell: Text, width: int) -> Text:
    """Return a cell with its middle left out where it is longer than ``width`` characters."""
    if cell_len(cell.plain) <= width:
        return cell
    left = (width - 1) // 2
    right = width - 1 - left
    return cell[:left] + Text("…") + cell[len(cell) - right :]
