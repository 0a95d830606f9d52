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


def inside(v, prefix):
    """The values of a module inside, by its own names."""
    return {name.removeprefix(prefix): value for name, value in v.items() if name.startswith(prefix)}


def attention(v, q, k=None, heads=2, prefix="", allowed=True):
    v = inside(v, prefix)
    k = q if k is None else k
    w = np.split(v["in_proj_weight"], 3)
    b = np.split(v["in_proj_bias"], 3) if "in_proj_bias" in v else (0.0, 0.0, 0.0)
    each = [x @ w[i].T + b[i] for i, x in enumerate((q, k, k))]
    made = []
    for qh, kh, vh in zip(*(np.split(x, heads, -1) for x in each), strict=True):
        scores = qh @ kh.swapaxes(1, 2)
        if "relative" in v:
            middle = len(v["relative"]) // 2
            for i, j in np.ndindex(scores.shape[1:]):
                scores[:, i, j] += qh[:, i] @ v["relative"][middle + j - i]
        scores = np.where(allowed, scores / math.sqrt(qh.shape[-1]), -1e9)
        made.append(np.exp(log_softmax(scores)) @ vh)
    return np.concatenate(made, -1) @ v["out_proj.weight"].T + v.get("out_proj.bias", 0.0)


def linear(v, name, x):
    return x @ v[f"{name}.weight"].T + v.get(f"{name}.bias", 0.0)


def norm(v, name, x):
    return standard(x, -1) * v[f"{name}.weight"] + v.get(f"{name}.bias", 0.0)


def transformer_layer(v, x, memory=None, norm_first=False, activate=lambda x: np.maximum(x, 0)):
    parts = [lambda x: attention(v, x, prefix="self_attn.")]
    if memory is not None:
        parts.append(lambda x: attention(v, x, memory, prefix="multihead_attn."))
    parts.append(lambda x: linear(v, "linear2", activate(linear(v, "linear1", x))))
    for number, part in enumerate(parts, 1):
        name = f"norm{number}"
        x = x + part(norm(v, name, x)) if norm_first else norm(v, name, x + part(x))
    return x


def transformer(v, source, target):
    """One encoder layer, two decoder layers."""
    memory = norm(v, "encoder.norm", transformer_layer(inside(v, "encoder.layers.0."), source))
    for i in (0, 1):
        target = transformer_layer(inside(v, f"decoder.layers.{i}."), target, memory)
    return norm(v, "decoder.norm", target)


def swish(x):
    return x * sigmoid(x)


def conformer(v, x, mask=None):
    """A kernel of 3, and a context."""

    def feed(name, x):
        y = swish(linear(v, f"{name}.linear1", norm(v, f"{name}.norm", x)))
        return linear(v, f"{name}.linear2", y)

    def convolution(v, x):
        first, gate = np.split(linear(v, "before.linear", norm(v, "before.norm", x)), 2, -1)
        x = np.pad(first * sigmoid(gate), ((0, 0), (1, 1), (0, 0)))
        w = v["depthwise.weight"][:, 0]
        y = sum(x[:, i : x.shape[1] - 2 + i] * w[:, i] for i in range(3)) + v["depthwise.bias"]
        return linear(v, "after.linear", swish(norm(v, "after.norm", y)))

    x = x + feed("feed1", x) / 2
    x = x + attention(v, norm(v, "attention_norm", x), prefix="attention.")
    x = x + convolution(inside(v, "convolution."), x)
    return norm(v, "norm", x + feed("feed2", x) / 2)


def tds_block(past, future, over):
    """Axes of the norm: (1, 2, 3), or (1, 3) for each step by itself."""

    def normed(v, name, x):
        return standard(x, over) * v[f"{name}.weight"][:, None, None] + v[f"{name}.bias"][:, None, None]

    def hand(v, x):
        padded = np.pad(x, ((0, 0), (0, 0), (past, future), (0, 0)))
        x = normed(v, "norm1", x + np.maximum(convolved(inside(v, "conv."), padded), 0))
        steps = x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)
        steps = linear(v, "linear2", np.maximum(linear(v, "linear1", steps), 0))
        return normed(v, "norm2", x + steps.reshape(x.swapaxes(1, 2).shape).swapaxes(1, 2))

    return hand


def adaptive_embedding(v, indices):
    return np.concatenate([v[f"rows.{i}.weight"] @ v[f"maps.{i}.weight"].T for i in range(3)])[indices]


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
