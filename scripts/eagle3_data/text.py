"""Text for people: counts with their unit, and plain tables. Standard library only."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def counted(number: int, noun: str) -> str:
    """A count with its unit: "1 sample", "2,000 samples", "3 batches"."""
    return f"{number:,} {noun if number == 1 else plural(noun)}"


def plural(noun: str) -> str:
    return f"{noun}es" if noun.endswith(("ch", "sh", "s", "x")) else f"{noun}s"


def table(rows: Sequence[Sequence[str]], numbers: Collection[int] = ()) -> str:
    """Rows of texts in columns two blanks apart; the columns of `numbers` are aligned right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in numbers else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
