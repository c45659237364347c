"""What a frame costs as the speech gets longer: a straight line through measured frames, by least squares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ParameterError

__all__ = ["CostFit", "fit_cost", "fit_rows"]


@dataclass(frozen=True)
class CostFit:
    """``ms = base + per_position * position / 1000 + per_capacity * capacity / 1000``.

    Attributes:
        base: Milliseconds of a frame with an empty cache.
        per_position: Milliseconds that 1000 *filled* columns add; None if the position was not varied.
        per_capacity: Milliseconds that 1000 *allocated* columns add; None if the capacity was not varied.
        r2: Share of the variance that the line explains, at most 1.
        count: Measurements it is drawn through.
    """

    base: float
    per_position: float | None
    per_capacity: float | None
    r2: float
    count: int

    def ms(self, position: int, capacity: int) -> float:
        """What the line says for one frame."""
        return self.base + ((self.per_position or 0) * position + (self.per_capacity or 0) * capacity) / 1000


def fit_cost(points: Iterable[tuple[float, float, float]]) -> CostFit:
    """Fits the cost of a frame.

    Args:
        points: Position, capacity and milliseconds of each measurement.

    Raises:
        ParameterError: Too few points, or position and capacity were only varied together.
    """
    table = np.asarray(list(points), dtype=np.float64).reshape(-1, 3)
    columns, ms = table[:, :2] / 1000, table[:, 2]
    varied = [bool(len(table)) and bool(np.ptp(columns[:, i]) > 0) for i in range(2)]
    design = np.column_stack([np.ones(len(table)), columns[:, varied]])
    if not any(varied) or len(table) <= sum(varied) or np.linalg.matrix_rank(design) < design.shape[1]:
        raise ParameterError(
            f"{len(table)} measurements do not tell position and capacity apart",
            fix="measure one capacity at several positions, and one position at several capacities",
        )
    solution = np.linalg.lstsq(design, ms, rcond=None)[0]
    left, spread = ((ms - design @ solution) ** 2).sum(), ((ms - ms.mean()) ** 2).sum()
    slopes = iter(solution[1:])
    position, capacity = (float(next(slopes)) if v else None for v in varied)
    return CostFit(float(solution[0]), position, capacity, 1 - float(left / spread) if spread else 1.0, len(table))


def fit_rows(
    rows: Iterable[Mapping[str, Any]], candidate: str, precision: str, *, batch: int = 1, reading: str = "ms_median"
) -> CostFit:
    """The same from the ``frame`` rows of a benchmark record.

    Args:
        rows: Of the record.
        candidate: Whose cost.
        precision: In which precision.
        batch: With how many rows of speech.
        reading: Which figure to fit; ``ms_min`` is the calmer one on a busy machine.

    Raises:
        ParameterError: The record does not vary position or capacity for that candidate.
    """
    wanted = ("frame", candidate, precision, batch, None)
    keys = ("graph", "candidate", "precision", "batch", "not_run")
    mine = [row for row in rows if tuple(row.get(key) for key in keys) == wanted]
    return fit_cost((row["position"], row["capacity"], row[reading]) for row in mine)
