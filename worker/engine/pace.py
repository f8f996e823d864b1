"""How much the device is given at once, so that jobs can join, leave and be ended about ten times a second."""


class Pace:
    """How many rows of a table the device does in one turn, learnt from the turn before.

    A tenth of a second is short for people and long beside the half millisecond that the device may idle between
    two turns. Where a row takes longer, a turn is one row.
    """

    def __init__(self, stretch_s: float = 0.1):
        self._stretch_s = stretch_s
        self._row_s: dict[tuple[int, ...], float] = {}

    def rows(self, kind: tuple[int, ...]) -> int:
        """One row, as a measurement, where nothing is known yet."""
        seconds = self._row_s.get(kind)
        return 1 if seconds is None else max(1, int(self._stretch_s / seconds))

    def learn(self, kind: tuple[int, ...], row_s: float) -> None:
        """Seconds that a row has just taken."""
        self._row_s[kind] = max(row_s, 1e-6)
