"""The classes of own kernels, which the backend inherits all at once."""

from __future__ import annotations

import ast

from flnb_backends.tensor.cuda.launcher import FOLDER


def test_no_class_has_a_private_method_of_another() -> None:
    """Which of the two would be called is decided by the order of the base classes."""
    found: dict[str, str] = {}
    for path in sorted(FOLDER.parent.glob("*.py")):
        classes = [
            node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef) and node.bases
        ]
        for c in classes:
            for name in [node.name for node in c.body if isinstance(node, ast.FunctionDef)]:
                if name.startswith("_") and not name.startswith("__"):
                    assert name not in found, f"{c.name} and {found[name]} have a method {name}"
                    found[name] = c.name
    assert {"Pooling", "Convolution", "Sorting", "Indexing"} <= set(found.values())
