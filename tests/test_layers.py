"""Imports point downward only: the table of docs/architecture.md, held against the sources."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "hvd_gradflow"
FRAMEWORKS = {"torch", "tensorflow", "keras", "horovod", "jax", "mxnet"}
WHERE_USED = FRAMEWORKS | {"mpi4py"}  # imported inside functions only, but in the front ends


def layers():
    """Layer names from top to bottom, each with its packages and modules, as the table says."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = re.search(r"^\| layer \| package .*?\n\| ---.*?\n(.*?)\n\n", page, re.MULTILINE | re.DOTALL)
    assert table, "docs/architecture.md has no table of layers"
    rows = [row.split("|")[1:3] for row in table.group(1).splitlines()]
    return {
        name.strip(): {
            re.sub(rf"^{PACKAGE}/|/$|\.py$", "", place)
            for place in re.findall(r"`([^`]+)`", places)
            if place.endswith(("/", ".py"))
        }
        for name, places in rows
    }


def layer_of(module):
    """Height of a dotted module within the package (0 is the base), or None for the package itself."""
    names = list(reversed(layers().values()))
    top = module.split(".")[1] if "." in module else None
    if top is None:
        return None
    found = [height for height, places in enumerate(names) if top in places]
    assert found, f"{module} belongs to no layer of docs/architecture.md"
    return found[0]


def sources():
    return sorted((ROOT / PACKAGE).rglob("*.py"))


def dotted(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree, package):
    """(imported dotted module, whether at module level) for every import in a module of `package`."""
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for node in ast.walk(function)
    }
    typing_only = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and ast.unparse(branch.test).endswith("TYPE_CHECKING")
        for node in ast.walk(branch)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = ".".join([*parents[: len(parents) - node.level + 1]]) if node.level else ""
            stem = ".".join(filter(None, (base, node.module)))
            # `from hvd_gradflow import codec` names a module, `from hvd_gradflow.codec import get` need not.
            found = [f"{stem}.{alias.name}" for alias in node.names] if stem == PACKAGE else [stem]
        else:
            continue
        for name in found:
            yield name, id(node) not in inside


def violations(source, module, is_package=False):
    """Sentences about the imports of one module that break the rule."""
    package = module if is_package else module.rpartition(".")[0]
    height = layer_of(module)
    at_home = list(reversed(layers())).index("front ends")
    for name, at_module_level in imports(ast.parse(source), package):
        root = name.split(".")[0]
        if root == PACKAGE and "." in name and name.split(".")[1] != "__version__":
            target = layer_of(name)
            if height is None or target > height:
                yield f"{module} imports {name}, which lies above it"
        elif root in WHERE_USED and height != at_home and at_module_level:
            yield f"{module} imports {name} at module level"


@pytest.mark.parametrize("path", sources(), ids=dotted)
def test_imports_point_downward(path):
    assert list(violations(path.read_text(), dotted(path), path.name == "__init__.py")) == []


def test_every_place_of_the_table_exists():
    places = {place for row in layers().values() for place in row}
    existing = {p.stem if p.suffix == ".py" else p.name for p in (ROOT / PACKAGE).iterdir()}
    assert places - existing == set()


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("hvd_gradflow.config", "from hvd_gradflow.codec import get"),
        ("hvd_gradflow.config", "import hvd_gradflow.device"),
        ("hvd_gradflow.codec.log4", "def f():\n    import hvd_gradflow.torch"),
        ("hvd_gradflow.codec.log4", "from hvd_gradflow import cli"),
        ("hvd_gradflow.codec.log4", "from ..torch import Compression"),
        ("hvd_gradflow.device.registry", "from hvd_gradflow.reduce import Reducer"),
        ("hvd_gradflow.comm.ldpc", "from hvd_gradflow.reduce import Reducer"),
        ("hvd_gradflow.device.registry", "from hvd_gradflow.comm.ldpc import LdpcStaircase"),
        ("hvd_gradflow.reduce.engine", "import torch"),
        ("hvd_gradflow.reduce.engine", "from mpi4py import MPI"),
        ("hvd_gradflow.cli", "import horovod.torch as hvd"),
        ("hvd_gradflow", "import hvd_gradflow.config"),
    ],
)
def test_the_rule_sees_what_breaks_it(module, source):
    assert len(list(violations(source, module))) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("hvd_gradflow.reduce.engine", "from hvd_gradflow.codec import get\nfrom hvd_gradflow import config"),
        ("hvd_gradflow.reduce.engine", "def f():\n    from mpi4py import MPI"),
        ("hvd_gradflow.torch.optimizer", "import torch\nimport horovod.torch\nimport hvd_gradflow.reduce"),
        ("hvd_gradflow.codec.log4", "from .base import Codec\nfrom hvd_gradflow import __version__"),
        ("hvd_gradflow.codec.log4", "if TYPE_CHECKING:\n    import torch"),
    ],
)
def test_the_rule_lets_the_rest_pass(module, source):
    assert list(violations(source, module)) == []
