"""A backend whose new tensors are never written: a model of any size is built from addresses alone."""

from flnb.backends import NumpyBackend


class Unwritten(NumpyBackend):
    """Blocks are reserved as ever, but no page of them is touched, so that counting parameters costs no memory."""

    name = "unwritten"

    def full(self, value, out):
        return out

    def random_uniform(self, low, high, source, out):
        return out

    def random_normal(self, mean, std, source, out):
        return out

    def copy(self, x, out=None):
        return x if out is None else out
