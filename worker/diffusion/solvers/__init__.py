"""Every solver, by name."""

from collections.abc import Mapping

from worker.diffusion.config import Solver
from worker.diffusion.solvers.consistency import LCM, TCD
from worker.diffusion.solvers.ddim import DDIM
from worker.diffusion.solvers.ddpm import DDPM
from worker.diffusion.solvers.deis import DEIS
from worker.diffusion.solvers.dpm import DPM_MULTISTEP, DPM_SINGLESTEP
from worker.diffusion.solvers.euler import EULER, EULER_ANCESTRAL
from worker.diffusion.solvers.flow import FLOW_EULER
from worker.diffusion.solvers.lms import LMS
from worker.diffusion.solvers.pndm import PNDM
from worker.diffusion.solvers.two_stage import DPM2, DPM2_ANCESTRAL, DPM_2S_ANCESTRAL, DPM_SDE, HEUN
from worker.diffusion.solvers.unipc import UNIPC

SOLVERS: Mapping[str, Solver] = {
    solver.name: solver
    for solver in (
        *(DDIM, DDPM, PNDM),
        *(LMS, EULER, EULER_ANCESTRAL, HEUN, DPM2, DPM2_ANCESTRAL),
        *(DPM_MULTISTEP, DPM_SINGLESTEP, DPM_2S_ANCESTRAL, DPM_SDE, UNIPC, DEIS),
        *(LCM, TCD),
        FLOW_EULER,
    )
}
