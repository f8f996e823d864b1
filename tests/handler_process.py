"""`python handler.py` as a process."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def handler(model_dir: Path | str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it in `folder` to its end."""
    environment = os.environ | {
        "MODEL_DIR": str(model_dir),
        "JAX_PLATFORMS": "cpu",
        "XDG_CACHE_HOME": str(folder / "caches"),
    }
    return subprocess.run(
        [sys.executable, str(ROOT / "handler.py"), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
