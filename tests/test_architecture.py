"""The house: imports run with the flow of the data, nothing lies loose, no file is too long."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import tta_diffusion

ROOT = Path(tta_diffusion.__file__).parent
# A room may import from itself and from the rooms before it. Rooms of one line do not know each other.
FLOW = (
    ("common",),
    ("theory",),
    ("fast",),
    ("tokens",),
    ("diffusion",),
    ("allocation", "denoiser"),
    ("control",),
    ("sampling",),
    ("assets", "reference"),
    ("settings",),
    ("streaming",),
    ("pipeline",),
    ("display",),
    ("data", "evaluation"),
    ("training",),
    ("baselines",),
    ("packaging", "bench"),
    ("analysis",),
    ("demo",),
    ("serve",),
    ("cli",),
)
FACE = {"pipeline", "settings", "display", "streaming", "reference"}
PLACE = {room: number for number, rooms in enumerate(FLOW) for room in rooms}
FILES = sorted(ROOT.rglob("*.py"))


def room_of(module: str) -> str:
    """`tta_diffusion.control.parse` lies in `control`."""
    return module.split(".")[1] if "." in module else ""


def module_of(file: Path) -> str:
    return ".".join(["tta_diffusion", *file.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__")


def imported(file: Path) -> set[str]:
    """Modules of the package that a file imports anywhere, also inside functions and for type checks."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= (
                {node.module} if node.module != "tta_diffusion" else {f"tta_diffusion.{a.name}" for a in node.names}
            )
    return {name for name in found if name.startswith("tta_diffusion.")}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_imports_run_with_the_flow(file: Path) -> None:
    own = room_of(module_of(file))
    if not own:  # the package itself: names for its users
        return
    for name in imported(file):
        other = room_of(name)
        if other == own or other == "__version__":
            continue
        assert PLACE[other] < PLACE[own], f"{own} must not import {name}: it comes later in the flow"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_what_is_imported_exists(file: Path) -> None:
    """A type checker that forgives missing libraries forgives missing modules of ours, too."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tta_diffusion"):
            path = ROOT.joinpath(*node.module.split(".")[1:])
            module = path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__init__.py"
            names = module.read_text()
            for alias in node.names:
                there = (path / f"{alias.name}.py").is_file() or (path / alias.name).is_dir()
                assert there or re.search(rf"\b{alias.name}\b", names), f"{node.module} has no {alias.name}"


def test_no_circles() -> None:
    graph = {module_of(file): imported(file) for file in FILES}
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, f"a circle of imports: {' -> '.join((*path, module))}"
        if module in done or module not in graph:
            return
        for name in graph[module]:
            if name != module:
                visit(name if name in graph else name.rpartition(".")[0], (*path, module))
        done.add(module)

    for module in graph:
        if module != "tta_diffusion":
            visit(module, ())


def test_nothing_lies_loose() -> None:
    assert {file.stem for file in ROOT.glob("*.py")} == FACE | {"__init__"}
    rooms = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert rooms | FACE == set(PLACE), "a new room needs its place in the flow"


def test_files_are_short() -> None:
    too_long = {str(file.relative_to(ROOT)): n for file in FILES if (n := len(file.read_text().splitlines())) > 400}
    assert not too_long


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_remote_code_and_no_pickles(file: Path) -> None:
    """Every loader of transformers is told so, in so many words."""
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner = ast.unparse(node.func.value)
        if node.func.attr == "from_pretrained" and (owner.startswith("Auto") or owner.endswith("auto_class")):
            told = {word.arg: ast.unparse(word.value) for word in node.keywords}
            assert told.get("trust_remote_code") == "False", f"line {node.lineno}"
        assert f"{owner}.{node.func.attr}" not in ("torch.load", "pickle.load", "pickle.loads")
