"""What all backends share of the wavelet transforms: filters, order of coefficients, what is refused."""

from __future__ import annotations

import numpy as np

MAX_LEVELS = 8

# Low-pass filters of the decomposition; their place here is their number on the wire.
FILTERS = {
    "haar": (0.7071067811865476, 0.7071067811865476),
    "db2": (-0.12940952255126037, 0.2241438680420134, 0.8365163037378079, 0.48296291314453416),
    "db4": (
        *(-0.010597401785069032, 0.0328830116668852, 0.030841381835560764, -0.18703481171909309),
        *(-0.027983769416859854, 0.6308807679298589, 0.7148465705529157, 0.2303778133088965),
    ),
    "sym4": (
        *(-0.07576571478927333, -0.02963552764599851, 0.49761866763201545, 0.8037387518059161),
        *(0.29785779560527736, -0.09921954357684722, -0.012603967262037833, 0.0322231006040427),
    ),
}
TAPS = {name: np.array(values, np.float32) for name, values in FILTERS.items()}


def extents(n: int, levels: int, columns: int) -> tuple[int, int]:
    """Return how much of `n` elements is transformed: (0, elements), or (rows, columns) of a matrix.

    The coefficients are in the order: the lowest band; the details of each level, from coarse to fine; what
    is left over, as it is. Only whole multiples of 2**levels are transformed, so that the length stays. Of a
    matrix the details of a level are three bands, each row by row: low along a row and high along a column,
    high and low, high and high; left over are the last columns, then the last rows.

    Parameters
    ----------
    n : int
    levels : int
    columns : int
        Of a matrix, row by row; 0: one dimension. A matrix with a side below 2**levels has one dimension.
    """
    if columns and n:
        rows, width = n // columns >> levels << levels, columns >> levels << levels
        if rows and width:
            return rows, width
    return 0, n >> levels << levels


def lowest(n: int, levels: int, columns: int) -> int:
    """Return how many coefficients the lowest band has, the first ones."""
    rows, width = extents(n, levels, columns)
    return (rows >> levels) * (width >> levels) if rows else width >> levels


def check(x: np.ndarray, out: np.ndarray, name: str, levels: int, columns: int) -> None:
    """Refuse a transform that cannot be, with ValueError."""
    if name not in FILTERS:
        raise ValueError(f"wavelet {name!r}: expected one of {', '.join(FILTERS)}")
    if not 1 <= levels <= MAX_LEVELS:
        raise ValueError(f"{levels} levels: expected 1 to {MAX_LEVELS}")
    if columns < 0 or (columns and x.size % columns):
        raise ValueError(f"{x.size} elements in rows of {columns}: expected whole rows")
    if x.size != out.size:
        raise ValueError(f"out has {out.size} elements, expected {x.size}")
    if x.size and np.shares_memory(x, out):
        raise ValueError("out overlaps the input: expected another array")
