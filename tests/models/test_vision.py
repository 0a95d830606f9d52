"""Models of images: shapes, rows of the papers' tables, errors that say what was got and expected."""

import re

import numpy as np
import pytest

import flnb
import flnb.nn as nn
from flnb.models import VGG, AlexNet, GoogLeNet, OverFeat, ResNet, VisionTransformer
from flnb.models.googlenet import TABLE, with_auxiliary
from flnb.models.images import extent_after

MODELS = {
    "AlexNet": (lambda **given: AlexNet((2, 3, 4, 3, 3), hidden=8, image=64, classes=5, **given), 64),
    "OverFeat": (lambda **given: OverFeat((2, 3, 4, 4, 4), hidden=(8, 6), image=71, classes=5, **given), 71),
    "VGG": (lambda **given: VGG((1, 2), (2, 3), hidden=8, image=16, classes=5, **given), 16),
    "GoogLeNet": (lambda **given: GoogLeNet(0.05, image=32, classes=5, **given), 32),
    "ResNet": (lambda **given: ResNet((1, 1), width=4, classes=5, **given), None),
    "ResNet of bottlenecks": (lambda **given: ResNet((1, 2), "bottleneck", width=4, classes=5, **given), None),
    "VisionTransformer": (
        lambda **given: VisionTransformer(
            image=16, patch=8, features=8, layers=2, heads=2, feedforward=8, classes=5, **given
        ),
        16,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_images_of_any_number_of_channels_become_logits(name):
    make, extent = MODELS[name]
    for channels in (1, 3):
        assert make(channels=channels)(flnb.ones((2, channels, extent or 40, extent or 40))).shape == (2, 5)


@pytest.mark.parametrize("name", MODELS)
def test_other_images_are_refused(name):
    make, extent = MODELS[name]
    kind, right = name.split()[0], extent or 40
    wanted = f"3, {extent}, {extent}" if extent else "3, H, W"
    wrong = [(2, 4, right, right), (3, right, right)]
    if extent:
        wrong += [(2, 3, right, right + 8), (2, 3, right - 8, right)]
    for shape in wrong:
        with pytest.raises(ValueError, match=re.escape(f"{kind}: expected images (N, {wanted}), got {shape}")):
            make()(flnb.ones(shape))


MADE = {
    "AlexNet": (lambda: AlexNet(image=32), "images of 32 x 32 are too small: nothing is left of them after a kernel"),
    "OverFeat": (lambda: OverFeat(image=32), "after a kernel of 5 with stride 1 and padding 0; take larger images"),
    "VGG": (lambda: VGG((1, 1)), "VGG: expected one width for each depth, got depths (1, 1) and widths (64, 128, 256"),
    "ResNet": (lambda: ResNet((1,), "wide"), "ResNet: block must be 'basic' or 'bottleneck', got 'wide'"),
    "VisionTransformer": (
        lambda: VisionTransformer(image=30, patch=8),
        "VisionTransformer: expected a patch that divides the image size 30, got 8",
    ),
    "GoogLeNet": (
        lambda: GoogLeNet(0.05, image=64, auxiliary=True),
        "GoogLeNet: the auxiliary classifiers need 5 x 5 positions, the convolutions leave 4 x 4; use images",
    ),
}


@pytest.mark.parametrize("name", MADE)
def test_sizes_that_do_not_fit_each_other_are_refused(name):
    make, message = MADE[name]
    with flnb.use_backend("meta"), pytest.raises(ValueError, match=re.escape(message)):
        make()


def counted(module):
    return sum(parameter.size for parameter in module.parameters())


def test_inceptions_have_as_many_weights_as_in_the_table():
    """Szegedy et al. 2015, table 1, column "params": weights in units of 1024, which its channels give nearly."""
    stated = {"3a": 159, "3b": 380, "4a": 364, "4b": 437, "4c": 463, "4d": 580, "4e": 840, "5a": 1072, "5b": 1388}
    with flnb.use_backend("meta"):
        net = GoogLeNet()
    found = [module for _, module in net.named_modules() if type(module).__name__ == "Inception"]
    assert len(found) == len(TABLE)
    weights = [sum(item.size for item in module.parameters() if item.ndim == 4) / 1024 for module in found]
    np.testing.assert_allclose(weights, list(stated.values()), rtol=0.08)
    np.testing.assert_allclose(sum(weights), sum(stated.values()), rtol=0.02)
    assert net.classifier[1].weight.size == 1000 * 1024


def test_auxiliary_classifiers_help_only_in_training():
    with flnb.use_backend("meta"):
        assert counted(GoogLeNet(auxiliary=True)) == 13_378_280
    net = GoogLeNet(0.05, image=80, classes=5, auxiliary=True)
    x, targets = flnb.randn(2, 3, 80, 80), flnb.asarray([1, 4])
    assert [logits.shape for logits in net(x)] == [(2, 5)] * 3
    net.eval()
    assert net(x).shape == (2, 5)
    own = float(with_auxiliary(net, x, targets))
    assert own == float(flnb.cross_entropy(net(x), targets))
    net.train()
    net.classifier[0].p = 0.0
    assert float(with_auxiliary(net, x, targets)) > own
    with_auxiliary(net, x, targets).backward()
    assert all(parameter.grad is not None for parameter in net.parameters())


def test_stages_of_a_resnet_halve_the_image_and_double_the_channels():
    net = ResNet((1, 1, 1, 1), "bottleneck", width=4, classes=5)
    seen = []
    for stage in (1, 2, 3, 4):
        getattr(net, f"layer{stage}").register_forward_hook(lambda module, inputs, y: seen.append(y.shape))
    net(flnb.ones((1, 3, 64, 64)))
    assert seen == [(1, 16, 16, 16), (1, 32, 8, 8), (1, 64, 4, 4), (1, 128, 2, 2)]


def test_the_class_token_sees_every_patch():
    flnb.manual_seed(0)
    net = MODELS["VisionTransformer"][0]()
    x = np.zeros((1, 3, 16, 16), np.float32)
    before = net(flnb.asarray(x)).detach().numpy()
    for row, column in ((0, 0), (0, 8), (8, 0), (15, 15)):
        changed = x.copy()
        changed[0, 1, row, column] = 1.0
        assert np.abs(net(flnb.asarray(changed)).detach().numpy() - before).max() > 1e-6


def test_extents_are_those_that_forward_has():
    features = nn.Sequential(nn.Conv2d(1, 2, 5, stride=2, padding=1), nn.MaxPool2d(3, stride=2), nn.AvgPool2d(2))
    for image in range(13, 30):
        assert features(flnb.ones((1, 1, image, image))).shape[2:] == (extent_after(features, image),) * 2
