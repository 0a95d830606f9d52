"""Networks of the literature by name, each as large as in its paper and small enough for a laptop.

>>> import flnb
>>> recipe = flnb.models.get("lenet")
>>> model = recipe.build("small")
>>> recipe.loss(model, *map(flnb.asarray, recipe.batch("small"))).shape
()
>>> flnb.models.summary(recipe).total.parameters
3718

The classes take their sizes as keyword arguments and are used directly, too:

>>> flnb.models.MLP((4, 8, 2))(flnb.ones((5, 4))).shape
(5, 2)
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any

from flnb.models.recipe import Recipe

if TYPE_CHECKING:
    from flnb.models.alexnet import AlexNet
    from flnb.models.asr_transformer import ASRTransformer
    from flnb.models.bert import BERT
    from flnb.models.captioner import Captioner
    from flnb.models.googlenet import GoogLeNet
    from flnb.models.lenet import LeNet
    from flnb.models.lstm_lm import LSTMLM
    from flnb.models.mlp import MLP
    from flnb.models.overfeat import OverFeat
    from flnb.models.resnet import ResNet
    from flnb.models.summaries import summary
    from flnb.models.transformer_lm import TransformerLM
    from flnb.models.vgg import VGG
    from flnb.models.vit import VisionTransformer

# Module of this package: its public names, and those of its RECIPES.
_CONTENTS = {
    "alexnet": (["AlexNet"], ["alexnet"]),
    "asr_transformer": (["ASRTransformer"], ["asr-transformer"]),
    "bert": (["BERT"], ["bert"]),
    "captioner": (["Captioner"], ["captioner"]),
    "googlenet": (["GoogLeNet"], ["googlenet"]),
    "lenet": (["LeNet"], ["lenet"]),
    "lstm_lm": (["LSTMLM"], ["lstm-lm-200", "lstm-lm-600", "lstm-lm-650x2"]),
    "mlp": (["MLP"], ["mlp"]),
    "overfeat": (["OverFeat"], ["overfeat"]),
    "resnet": (["ResNet"], ["resnet18", "resnet34", "resnet50"]),
    "summaries": (["summary"], []),
    "transformer_lm": (["TransformerLM"], ["transformer-lm"]),
    "vgg": (["VGG"], ["vgg-a", "vgg16"]),
    "vit": (["VisionTransformer"], ["vit"]),
}
_HOMES = {name: module for module, (_, names) in _CONTENTS.items() for name in names}
_CLASSES = {kind: module for module, (kinds, _) in _CONTENTS.items() for kind in kinds}


def names() -> tuple[str, ...]:
    """The names that `get` knows, in alphabetical order.

    >>> "lenet" in names()
    True
    """
    return tuple(sorted(_HOMES))


def get(name: str) -> Recipe:
    """The recipe of a model by name: how it is built, its inputs and its loss.

    >>> get("lenet").parameters["paper"]
    61706

    Raises:
        ValueError: there is none of that name; close ones are named, or all.
    """
    if name not in _HOMES:
        close = get_close_matches(name, _HOMES, cutoff=0.4)
        hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"known: {', '.join(names())}"
        raise ValueError(f"flnb.models: no model {name!r}; {hint}")
    recipes: tuple[Recipe, ...] = import_module(f"flnb.models.{_HOMES[name]}").RECIPES
    return next(recipe for recipe in recipes if recipe.name == name)


def __getattr__(name: str) -> Any:
    """Import a model's module when its class is asked for."""
    if name not in _CLASSES:
        raise AttributeError(f"module 'flnb.models' has no attribute {name!r}")
    value = getattr(import_module(f"flnb.models.{_CLASSES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_CLASSES})


__all__ = [
    "ASRTransformer", "AlexNet", "BERT", "Captioner", "GoogLeNet", "LSTMLM", "LeNet", "MLP", "OverFeat", "Recipe",
    "ResNet", "TransformerLM", "VGG", "VisionTransformer", "get", "names", "summary",
]  # fmt: skip
