"""What modules compute, in NumPy: ``v`` holds parameters and buffers by name."""

import math

import numpy as np


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def log_softmax(x, axis=-1):
    shifted = x - x.max(axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))


def standard(x, axes, eps=1e-5):
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


def windows(x, kernel, stride, padding, dilation=1, fill=0.0):
    """(N, C, extents', kernel) of x (N, C, extents)."""
    rank = x.ndim - 2
    x = np.pad(x, ((0, 0), (0, 0), *((padding, padding),) * rank), constant_values=fill)
    span = [dilation * (k - 1) + 1 for k in kernel]
    seen = np.lib.stride_tricks.sliding_window_view(x, span, tuple(range(2, 2 + rank)))
    return seen[
        (slice(None), slice(None), *(slice(None, None, stride),) * rank, *(slice(None, None, dilation),) * rank)
    ]


def convolved(v, x, stride=1, padding=0, dilation=1, groups=1):
    w = v["weight"]
    rank = w.ndim - 2
    parts = []
    for part, own in zip(np.split(x, groups, 1), np.split(w, groups), strict=True):
        seen = windows(part, w.shape[2:], stride, padding, dilation)
        axes = [1, *range(2 + rank, 2 + 2 * rank)], list(range(1, 2 + rank))
        parts.append(np.moveaxis(np.tensordot(seen, own, axes), -1, 1))
    return np.concatenate(parts, 1) + v["bias"].reshape(-1, *(1,) * rank)


def pooled(x, reduce, fill):
    return reduce(windows(x, (3,) * (x.ndim - 2), 2, 1, fill=fill), axis=tuple(range(x.ndim, 2 * x.ndim - 2)))


def step_rnn(gates, h, u, b):
    return (np.tanh(gates + h[0] @ u.T + b),)


def step_lstm(gates, state, u, b):
    i, f, g, o = np.split(gates + state[0] @ u.T + b, 4, -1)
    c = sigmoid(f) * state[1] + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def step_gru(gates, state, u, b):
    (r, z, n), (rh, zh, nh) = np.split(gates, 3, -1), np.split(state[0] @ u.T + b, 3, -1)
    z = sigmoid(z + zh)
    return ((1 - z) * np.tanh(n + sigmoid(r + rh) * nh) + z * state[0],)


def recurrent(step, states, ends=("",)):
    """Two layers from zero states; ends "" and "_reverse" for two directions."""

    def hand(v, x):
        lasts = []
        for layer in (0, 1):
            outputs = []
            for end in ends:
                w, u, b, c = (v[f"{n}_l{layer}{end}"] for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
                state, seen = (np.zeros((x.shape[1], u.shape[1])),) * states, []
                for t in x[::-1] if end else x:
                    state = step(t @ w.T + b, state, u, c)
                    seen.append(state[0])
                outputs.append(np.stack(seen[::-1] if end else seen))
                lasts.append(state)
            x = np.concatenate(outputs, -1)
        return x, *(np.stack(each) for each in zip(*lasts, strict=True))

    return hand


def attention(v, q, k=None, heads=2, prefix=""):
    v = {name.removeprefix(prefix): value for name, value in v.items()}
    k = q if k is None else k
    w, b = np.split(v["in_proj_weight"], 3), np.split(v["in_proj_bias"], 3)
    each = [x @ w[i].T + b[i] for i, x in enumerate((q, k, k))]
    made = []
    for qh, kh, vh in zip(*(np.split(x, heads, -1) for x in each), strict=True):
        made.append(np.exp(log_softmax(qh @ kh.swapaxes(1, 2) / math.sqrt(qh.shape[-1]))) @ vh)
    return np.concatenate(made, -1) @ v["out_proj.weight"].T + v["out_proj.bias"]


def encoder_layer(norm_first, activate):
    def hand(v, x):
        def norm(x, name):
            return standard(x, -1) * v[f"{name}.weight"] + v[f"{name}.bias"]

        def feed(x):
            hidden = activate(x @ v["linear1.weight"].T + v["linear1.bias"])
            return hidden @ v["linear2.weight"].T + v["linear2.bias"]

        if norm_first:
            x = x + attention(v, norm(x, "norm1"), prefix="self_attn.")
            return x + feed(norm(x, "norm2"))
        x = norm(x + attention(v, x, prefix="self_attn."), "norm1")
        return norm(x + feed(x), "norm2")

    return hand


def adaptive(v, x, targets=None, prefix=""):
    head = log_softmax(x @ v[f"{prefix}head.weight"].T)
    parts = [head[:, :4]]
    for i in (0, 1):
        first, second = (v[f"{prefix}tail.{i}.{j}.weight"] for j in (0, 1))
        parts.append(log_softmax(x @ first.T @ second.T) + head[:, 4 + i, None])
    whole = np.concatenate(parts, 1)
    return whole if targets is None else -whole[np.arange(len(x)), targets].mean()


def sinusoids(length, features):
    return np.array([
        [(math.cos if i % 2 else math.sin)(t / 10000 ** ((i - i % 2) / features)) for i in range(features)]
        for t in range(length)
    ])  # fmt: skip


def gelu(x):
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def weight_norm(v, x):
    w = v["magnitude"] * v["direction"] / np.linalg.norm(v["direction"], axis=1, keepdims=True)
    return x @ w.T + v["module.bias"]


def two_heads(v, x):
    for i in (0, 1):
        x = np.tanh(x @ v[f"layers.{i}.weight"].T + v[f"layers.{i}.bias"])
    return tuple(x @ v[f"heads.{k}.weight"].T + v[f"heads.{k}.bias"] for k in "ab")
