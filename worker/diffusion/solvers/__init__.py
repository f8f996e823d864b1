"""Every solver, by name."""

from collections.abc import Mapping

from worker.diffusion.config import Solver
from worker.diffusion.solvers.ddim import DDIM
from worker.diffusion.solvers.euler import EULER, EULER_ANCESTRAL

SOLVERS: Mapping[str, Solver] = {solver.name: solver for solver in (DDIM, EULER, EULER_ANCESTRAL)}
