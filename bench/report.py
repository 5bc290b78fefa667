"""How a benchmark's rows leave it: as they are measured, as a table, and as a file.

It owns no measurement and no picture; those are the benchmarks' own. The form of a row is in
common.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import common
from bench.common import Row


class Report:
    """The rows of one run, NAME.jsonl in `out`; with `as_json` each is printed as it comes."""

    def __init__(self, name: str, out: Path, *, as_json: bool) -> None:
        self.rows: list[Row] = []
        self._path = out / f"{name}.jsonl"
        self._as_json = as_json
        out.mkdir(parents=True, exist_ok=True)

    def add(self, rows: Iterable[Row]) -> None:
        """More rows, in the order in which people should read them."""
        for row in rows:
            self.rows.append(row)
            if self._as_json:
                print(row.to_json(), flush=True)

    def finish(self, *tables: Table, picture: Path | None = None) -> list[Row]:
        """Writes the file, shows the tables to people, and says what was written.

        Where standard output has the JSON lines, people read the tables on standard error.
        """
        common.write_rows(self.rows, self._path)
        for made in tables:
            Console(stderr=self._as_json).print(made)
        written = [path for path in (self._path, picture) if path is not None]
        Console(stderr=True).print("written:", *written)
        return self.rows


def comparison(title: str, rows: Iterable[Row], digits: int) -> Table:
    """Rates beside those of others, for people; every row has a baseline."""
    made = Table(title=title)
    for column in ("case", "ours", "against", "theirs", "ratio"):
        made.add_column(column, justify="left" if column in ("case", "against") else "right")
    for row in rows:
        assert row.baseline_value is not None
        made.add_row(
            row.case,
            f"{row.value / common.GIGABYTE:.{digits}f}",
            row.baseline,
            f"{row.baseline_value / common.GIGABYTE:.{digits}f}",
            f"{row.ratio:.2f}",
        )
    return made
