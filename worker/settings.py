"""The environment, read once into a frozen record; the only reader of `os.environ`.

Every setting is declared once, with its default and its description, from which the README's table is made.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from worker.errors import SettingsError

LOCAL_PROGRESS_S = 0.1


def _setting(default: Any, description: str, *, secret: bool = False) -> Any:
    return field(default=default, repr=not secret, metadata={"description": description})


@dataclass(frozen=True)
class Settings:
    """What an operator chooses; each field is the environment variable of its name in capitals."""

    model_dir: Path = _setting(
        Path("models/emoji/baked"), "The baked folder to serve; by default the small model that comes along."
    )
    model_id: str = _setting(
        "",
        "Checkpoint to serve instead of MODEL_DIR (owner/name on the hub, a folder, toy:VARIANT): the first worker "
        "bakes it onto the network volume, the next ones find it there.",
    )
    model_revision: str = _setting("", "Branch, tag or commit of MODEL_ID; empty: what main was at the first start.")
    model_dtype: Literal["bfloat16", "float32", "float8_e4m3"] = _setting(
        "bfloat16", "Number format of MODEL_ID's weights; float8_e4m3: the large networks in half the memory."
    )
    volume_dir: Path = _setting(
        Path("/runpod-volume"), "The network volume; where there is none, MODEL_ID is baked again at every start."
    )
    output_dir: Path = _setting(Path("output"), "Where local runs put their pictures.")
    verify_weights: bool = _setting(False, "Check every weight file's sha256 at start.")
    text_encoders: Literal["device", "host", "disk"] = _setting(
        "device",
        "Where their weights are between texts: on the device, or in the host's memory or on its disk, from where they "
        "go to the device for each text and leave it again.",
    )
    prediction_type: Literal["auto", "epsilon", "v_prediction", "sample"] = _setting(
        "auto", "What the network predicts; auto: what the checkpoint's scheduler configuration says."
    )
    attention: Literal["auto", "xla", "cudnn"] = _setting("auto", "Attention kernel; auto: cudnn on an NVIDIA GPU.")
    convolution: Literal["auto", "xla", "shifted"] = _setting("auto", "3x3 convolutions; auto: shifted on a CPU.")
    max_slots: int = _setting(
        4,
        "Most pictures in one pass on each GPU, of one job or several; passes of 1, 2, 4 ... up to it are compiled.",
    )
    max_devices: int = _setting(
        8, "Most GPUs of the worker that share passes; each holds the whole network and carries its share of pictures."
    )
    warm_up: bool = _setting(True, "On Runpod, compile before the first job what SIZES, or the model's own size, need.")
    start_budget_s: float = _setting(
        300.0,
        "Seconds from the start after which jobs are served with what is ready, while the rest is compiled behind; "
        "Runpod gives a worker 7 minutes.",
    )
    sizes: tuple[tuple[int, int], ...] = _setting(
        (),
        "WIDTHxHEIGHT,... that are served; others are refused. Empty: any size, compiled when first asked for.",
    )
    max_pixels: int = _setting(2048 * 2048, "Most pixels of one picture, width times height.")
    max_concurrency: int = _setting(
        5, "Jobs in hand at once: as many as share a pass, and one that is being read, encoded or uploaded."
    )
    job_timeout_s: float = _setting(0.0, "Seconds after which a job is given up with an error; 0: never.")
    progress_every_s: float = _setting(5.0, "Seconds between two progress reports of a job on Runpod; 0: none.")
    program_cache: str = _setting(
        "auto",
        "Folder for programs that had to be compiled, or none; auto: one on the network volume where there is one, "
        "in a local run else one in the user's cache folder. Whoever can write to it can run code in the worker.",
    )
    xdg_cache_home: Path = _setting(Path("~/.cache"), "The user's cache folder, an absolute path.")
    trust_programs: bool = _setting(
        False, "Use stored programs without trying each once, in a process of its own, on this card and driver."
    )
    xla_flags: str = _setting("", "Flags for XLA; a program that was stored with others is not used.")
    allow_cpu: bool = _setting(False, "Serve on Runpod without a GPU; local runs always may.")
    max_inline_bytes: int = _setting(9_000_000, "Most bytes of an answer that carries its pictures in itself.")
    bucket_endpoint_url: str = _setting(
        "",
        "S3 service for the pictures, such as https://s3.eu-central-1.amazonaws.com; needs the next three.",
    )
    bucket_name: str = _setting("", "The bucket; it stands here, not in the endpoint.")
    bucket_access_key_id: str = _setting("", "Key that may put objects, and get them for links.", secret=True)
    bucket_secret_access_key: str = _setting("", "Its secret.", secret=True)
    bucket_session_token: str = _setting("", "Token of temporary keys; links end when it does.", secret=True)
    bucket_region: str = _setting("", "Region that is signed for; empty: the endpoint's, else us-east-1.")
    bucket_prefix: str = _setting("", "Pictures are PREFIX/job-id/index.png.")
    bucket_addressing_style: Literal["auto", "path", "virtual"] = _setting(
        "auto", "Where the bucket's name stands, in the path or in the host; auto: in the path."
    )
    bucket_url_expiry_s: int = _setting(604_800, "Seconds that a link lives, 7 days at most.")
    bucket_public_url: str = _setting("", "Where a public bucket is read: links are this/key, without an end.")


def load_settings(environment: Mapping[str, str]) -> Settings:
    """Parse the environment; raises SettingsError naming variable, value and what is allowed."""
    values: dict[str, Any] = {}
    for item in fields(Settings):
        variable = item.name.upper()
        text = environment.get(variable, "").strip()
        if text:
            values[item.name] = _parse(variable, text, item.type)
    return Settings(**values)


def for_local_run(settings: Settings) -> Settings:
    """What is different on one's own machine: a place for compiled programs, and progress for eyes."""
    cache = settings.program_cache
    if cache == "auto" and not settings.volume_dir.is_dir():
        # The XDG Base Directory Specification has relative paths ignored.
        home = settings.xdg_cache_home if settings.xdg_cache_home.is_absolute() else Settings.xdg_cache_home
        cache = str(home / "worker-jax-diffusion" / "programs")
    return replace(settings, program_cache=cache, progress_every_s=LOCAL_PROGRESS_S)


def _parse(variable: str, text: str, kind: Any) -> Any:
    if kind is Path:
        return Path(text)
    if kind is str:
        return text
    if kind is bool:
        return _one_of(variable, text.lower(), {"1": True, "true": True, "0": False, "false": False})
    if kind is int:
        if not text.isdecimal() or int(text) < 1:
            raise SettingsError(f"{variable}: {text!r} is not a whole number above 0")
        return int(text)
    if kind is float:
        return _seconds(variable, text)
    if choices := get_args(kind) if "Literal" in str(kind) else ():
        return _one_of(variable, text, {choice: choice for choice in choices})
    return tuple(_size(variable, size.strip()) for size in text.split(","))


def _one_of(variable: str, text: str, choices: Mapping[str, Any]) -> Any:
    if text not in choices:
        raise SettingsError(f"{variable}: {text!r} is not one of {', '.join(choices)}")
    return choices[text]


def _seconds(variable: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise SettingsError(f"{variable}: {text!r} is not a number of seconds such as 90 or 0")
    return value


def _size(variable: str, text: str) -> tuple[int, int]:
    width, _, height = text.partition("x")
    if not (width.isdecimal() and height.isdecimal()) or int(width) % 8 or int(height) % 8:
        raise SettingsError(f"{variable}: {text!r} is not a size in multiples of 8 such as 832x1216")
    return int(width), int(height)
