"""Imports run one way, and the pure folders stay pure: both read off the source with `ast`."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted([*ROOT.glob("worker/**/*.py"), *ROOT.glob("builder/**/*.py"), ROOT / "handler.py"])

# Who may import whom, by the first folder or file below `worker`; a package may always import itself.
ALLOWED = {
    "handler": {"engine", "local", "runner", "sdk", "service", "settings", "errors"},
    "builder": None,
    "local": {"errors", "local_api", "runner", "sdk", "service", "settings"},
    "local_api": {"form", "guard", "outputs", "report", "schema", "service"},
    "guard": set(),
    "form": {"diffusion", "engine", "schema"},
    "schema": {"job", "request"},
    "runner": {"control", "settings", "errors"},
    "control": {"errors"},
    "sdk": set(),
    "service": {
        "answer", "control", "errors", "inputs", "job", "outputs", "places", "report", "request", "settings", "storage",
        "engine",
    },
    "report": {"engine"},
    "answer": {"request", "diffusion", "outputs", "places", "engine", "weights", "errors"},
    "job": {"request", "errors"},
    "request": {"errors", "diffusion", "outputs"},
    "settings": {"errors"},
    "inputs": {"errors"},
    "outputs": set(),
    "places": {"outputs"},
    "storage": {"bucket", "errors", "outputs", "places", "s3", "settings"},
    "s3": {"bucket", "outputs", "places", "errors"},
    "bucket": {"request", "settings", "errors"},
    "engine": {"families", "weights", "text", "diffusion", "nn", "request", "settings", "errors"},
    "families": {"models", "nn", "diffusion", "errors"},
    "models": {"nn", "errors"},
    "nn": {"errors"},
    "diffusion": {"errors"},
    "text": {"errors"},
    "weights": {"errors"},
    "errors": set(),
}  # fmt: skip
PURE_FOLDERS = ("nn", "models", "diffusion", "families")
PURE_FILES = tuple(ROOT / "worker" / "weights" / name for name in ("mapping.py",))
IMPURE_MODULES = {
    "asyncio", "concurrent", "datetime", "io", "logging", "multiprocessing", "os", "pathlib", "random", "runpod",
    "shutil", "socket", "subprocess", "sys", "tempfile", "threading", "time", "urllib",
}  # fmt: skip
IMPURE_CALLS = {
    "open",
    "print",
    "input",
    "device_put",
    "devices",
    "local_devices",
    "jit",
    "block_until_ready",
}


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[1] if parts[0] == "worker" and len(parts) > 1 else parts[0]


def imports(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_run_one_way(path: Path):
    name = module_of(path)
    if name == "__init__":
        return
    allowed = ALLOWED[name]
    for module in imports(ast.parse(path.read_text("utf-8"))):
        top, _, rest = module.partition(".")
        if top == "builder":
            assert name in {"builder", "handler"}, f"{path.name} imports {module}"
        if top == "worker" and allowed is not None:
            target = rest.partition(".")[0]
            assert target in allowed | {name}, f"{path.name} imports {module}"
        assert top not in {"torch", "diffusers", "transformers"}, f"{path.name} imports {module}"


@pytest.mark.parametrize(
    "path",
    [path for path in SOURCES if module_of(path) in PURE_FOLDERS] + list(PURE_FILES),
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_pure_files_have_no_effects(path: Path):
    tree = ast.parse(path.read_text("utf-8"))
    impure = {module for module in imports(tree) if module.partition(".")[0] in IMPURE_MODULES}
    assert not impure, f"{path.name} imports {sorted(impure)}"
    called = {
        node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    }
    assert not called & IMPURE_CALLS, f"{path.name} calls {sorted(called & IMPURE_CALLS)}"


@pytest.mark.parametrize("path", [path for path in SOURCES if module_of(path) in PURE_FOLDERS], ids=str)
def test_no_arrays_are_made_at_import(path: Path):
    for node in ast.parse(path.read_text("utf-8")).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign | ast.Expr):
            continue
        names = {
            item.value.id
            for item in ast.walk(node)
            if isinstance(item, ast.Attribute) and isinstance(item.value, ast.Name)
        }
        calls = any(isinstance(item, ast.Call) for item in ast.walk(node))
        assert not (calls and names & {"jnp", "jax"}), f"{path.name}:{node.lineno} makes an array"


def test_only_settings_reads_the_environment():
    readers = {
        path.relative_to(ROOT).as_posix()
        for path in SOURCES
        if any(
            isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv"}
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
        )
    }
    assert readers <= {"handler.py", "builder/fetch.py", "builder/__main__.py", "builder/compile.py"}, readers
