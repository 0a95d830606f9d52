"""The models of `flnb.models` in torch, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.peers import torch_images, torch_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn

__all__ = ["MODELS", "build"]

MODELS: dict[str, tuple[Callable[..., nn.Module], Callable[..., Any]]]
MODELS = {**torch_images.MODELS, **torch_tokens.MODELS}


def build(name: str, settings: Mapping[str, Any]) -> tuple[nn.Module, Callable[..., Any]]:
    """Return a model in torch and its loss; raises a ValueError if there is no torch version of the model."""
    if name not in MODELS:
        raise ValueError(f"benchmarks: {name!r} has no peer in torch yet; there are {', '.join(sorted(MODELS))}")
    kind, loss = MODELS[name]
    return kind(**settings), loss
