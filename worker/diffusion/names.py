"""The names by which a request may ask for a solver: diffusers', worker-sdxl's, AUTOMATIC1111's and ComfyUI's."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from worker.diffusion.config import SIGMA_SCHEDULES
from worker.diffusion.solvers import SOLVERS


@dataclass(frozen=True)
class Choice:
    """A solver (a key of `SOLVERS`) and the options that its name implies."""

    solver: str
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Name:
    """One offered solver: the name it is listed under, its other names, and what they mean."""

    title: str
    others: tuple[str, ...]
    solver: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])


_2M = {"algorithm_type": "dpmsolver++", "solver_order": 2, "solver_type": "midpoint"}
_2M_SDE = {**_2M, "algorithm_type": "sde-dpmsolver++"}

NAMES = (
    Name("DDIM", ("DDIMScheduler",), "ddim"),
    Name("DDPM", ("DDPMScheduler",), "ddpm"),
    Name("PNDM", ("PNDMScheduler", "PLMS"), "pndm"),
    Name("LMS", ("LMSDiscreteScheduler", "KLMS", "K_LMS"), "lms"),
    Name("Euler", ("EulerDiscreteScheduler", "K_EULER"), "euler"),
    Name(
        "Euler a",
        ("EulerAncestralDiscreteScheduler", "K_EULER_ANCESTRAL", "Euler ancestral"),
        "euler_ancestral",
    ),
    Name("Heun", ("HeunDiscreteScheduler", "K_HEUN"), "heun"),
    Name("DPM2", ("KDPM2DiscreteScheduler", "K_DPM_2"), "dpm2"),
    Name(
        "DPM2 a",
        ("KDPM2AncestralDiscreteScheduler", "K_DPM_2_ANCESTRAL", "DPM2 ancestral"),
        "dpm2_ancestral",
    ),
    Name("DPM++", ("DPMSolverMultistepScheduler",), "dpm_multistep"),
    Name("DPM++ 2M", ("dpmpp_2m",), "dpm_multistep", _2M),
    Name("DPM++ 2M SDE", ("dpmpp_2m_sde",), "dpm_multistep", _2M_SDE),
    Name("DPM++ 2M SDE Heun", ("dpmpp_2m_sde_heun",), "dpm_multistep", {**_2M_SDE, "solver_type": "heun"}),
    Name("DPM++ 3M SDE", ("dpmpp_3m_sde",), "dpm_multistep", {**_2M_SDE, "solver_order": 3}),
    Name("DPM++ 2S", ("dpmpp_2s",), "dpm_singlestep", _2M),
    Name("DPM++ 2S a", ("DPM++ 2S ancestral", "dpmpp_2s_ancestral"), "dpm_2s_ancestral"),
    Name("DPM single-step", ("DPMSolverSinglestepScheduler",), "dpm_singlestep"),
    Name("DPM++ SDE", ("DPMSolverSDEScheduler", "dpmpp_sde"), "dpm_sde"),
    Name("UniPC", ("UniPCMultistepScheduler", "uni_pc"), "unipc"),
    Name("DEIS", ("DEISMultistepScheduler",), "deis"),
    Name("LCM", ("LCMScheduler",), "lcm"),
    Name("TCD", ("TCDScheduler",), "tcd"),
    Name("Flow Euler", ("FlowMatchEulerDiscreteScheduler",), "flow_euler"),
)

SUFFIXES: Mapping[str, str] = dict(zip(("Karras", "Exponential", "Beta"), SIGMA_SCHEDULES[:3], strict=True))
"""What may follow a name, and the sigma schedule that it turns on."""


def resolve(name: str) -> Choice:
    """The solver of a name, which may end in a word of `SUFFIXES`.

    Case, spaces, `_` and `-` do not matter, nor a final "Scheduler". Raises ValueError with all names.
    """
    plain = _plain(name)
    if plain in _BY_NAME:
        return _BY_NAME[plain]
    for suffix, option in SUFFIXES.items():
        base = _BY_NAME.get(plain.removesuffix(_plain(suffix)))
        if plain.endswith(_plain(suffix)) and base and option in SOLVERS[base.solver].defaults:
            return Choice(base.solver, {**base.options, option: True})
    titles = ", ".join(entry.title for entry in NAMES)
    raise ValueError(f"{name[:60]!r} is not one of {titles}; with noise levels also followed by {', '.join(SUFFIXES)}")


def title_of(class_name: str, options: Mapping[str, Any]) -> str:
    """The title, with its suffix, by which a user asks for diffusers' class with these options."""
    fitting = [
        entry
        for entry in NAMES
        if SOLVERS[entry.solver].class_name == class_name and entry.options.items() <= options.items()
    ]
    title = max(fitting, key=lambda entry: len(entry.options)).title if fitting else class_name
    return " ".join([title, *(suffix for suffix, option in SUFFIXES.items() if options.get(option))])


def offered() -> list[str]:
    """Every title, and after it the title with each word of `SUFFIXES` that it may be followed by."""
    return [
        " ".join([entry.title, *suffix])
        for entry in NAMES
        for suffix in [[], *([word] for word, option in SUFFIXES.items() if option in SOLVERS[entry.solver].defaults)]
    ]


def markdown_table() -> str:
    """The offered solvers as a Markdown table: names, diffusers' class, noise levels, options."""
    lines = ["| name | also | noise levels | options |", "| --- | --- | --- | --- |"]
    for entry in NAMES:
        taken = SOLVERS[entry.solver].defaults
        levels = ", ".join(suffix for suffix, option in SUFFIXES.items() if option in taken)
        options = ", ".join(f"`{option}`" for option in SOLVERS[entry.solver].requestable)
        others = ", ".join(f"`{other}`" for other in entry.others)
        lines.append(f"| {entry.title} | {others} | {levels} | {options} |")
    return "\n".join(lines)


def _plain(name: str) -> str:
    letters = name.casefold().replace(" ", "").replace("_", "").replace("-", "")
    return letters.removesuffix("scheduler").replace("dpmpp", "dpm++")


_BY_NAME: Mapping[str, Choice] = {
    _plain(spelling): Choice(entry.solver, entry.options)
    for entry in NAMES
    for spelling in (entry.title, *entry.others)
}
