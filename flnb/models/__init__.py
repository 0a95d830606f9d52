"""Published network architectures by name, each in the size of its paper and in a small size for laptops.

>>> import flnb
>>> recipe = flnb.models.get("lenet")
>>> model = recipe.build("small")
>>> recipe.loss(model, *map(flnb.asarray, recipe.batch("small"))).shape
()
>>> flnb.models.summary(recipe).total.parameters
3718

The model classes can also be used directly, with their sizes as arguments:

>>> flnb.models.MLP((4, 8, 2))(flnb.ones((5, 4))).shape
(5, 2)
"""

from __future__ import annotations

from difflib import get_close_matches

from flnb.models.alexnet import ALEXNET_RECIPE, AlexNet
from flnb.models.asr_transformer import ASR_TRANSFORMER_RECIPE, ASRTransformer
from flnb.models.bert import BERT, BERT_RECIPE
from flnb.models.captioner import CAPTIONER_RECIPE, Captioner
from flnb.models.googlenet import GOOGLENET_RECIPE, GoogLeNet
from flnb.models.lenet import LENET_RECIPE, LeNet
from flnb.models.lstm_lm import LSTM_LM_RECIPES, LSTMLM
from flnb.models.mlp import MLP, MLP_RECIPE
from flnb.models.overfeat import OVERFEAT_RECIPE, OverFeat
from flnb.models.recipe import Recipe
from flnb.models.resnet import RESNET_RECIPES, ResNet
from flnb.models.summaries import summary
from flnb.models.transformer_lm import TRANSFORMER_LM_RECIPE, TransformerLM
from flnb.models.vgg import VGG, VGG_RECIPES
from flnb.models.vit import VIT_RECIPE, VisionTransformer

__all__ = [
    "ASRTransformer", "AlexNet", "BERT", "Captioner", "GoogLeNet", "LSTMLM", "LeNet", "MLP", "OverFeat", "Recipe",
    "ResNet", "TransformerLM", "VGG", "VisionTransformer", "get", "names", "summary",
]  # fmt: skip

_RECIPES = {
    recipe.name: recipe
    for recipe in (
        ALEXNET_RECIPE, ASR_TRANSFORMER_RECIPE, BERT_RECIPE, CAPTIONER_RECIPE, GOOGLENET_RECIPE, LENET_RECIPE,
        *LSTM_LM_RECIPES, MLP_RECIPE, OVERFEAT_RECIPE, *RESNET_RECIPES, TRANSFORMER_LM_RECIPE, *VGG_RECIPES,
        VIT_RECIPE,
    )
}  # fmt: skip


def names() -> tuple[str, ...]:
    """Return the names that `get` accepts, in alphabetical order.

    >>> import flnb
    >>> "lenet" in flnb.models.names()
    True
    """
    return tuple(sorted(_RECIPES))


def get(name: str) -> Recipe:
    """Return the recipe of a model: how to build it, random batches for it, and its loss.

    >>> import flnb
    >>> flnb.models.get("lenet").parameters["paper"]
    61706

    Raises:
        ValueError: there is no model of that name; the message lists similar names, or all of them.
    """
    if name not in _RECIPES:
        close = get_close_matches(name, _RECIPES, cutoff=0.4)
        hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"known: {', '.join(names())}"
        raise ValueError(f"flnb.models: no model {name!r}; {hint}")
    return _RECIPES[name]
