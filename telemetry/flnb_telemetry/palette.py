"""The dashboard's colours of op families and memory categories, for figures.

Each colour is a pair: the colours on a light and on a dark background. The colours are distinguishable with protanopia
and deuteranopia, and have a contrast of 3:1 on white or #212121.
"""

FAMILY: dict[str, tuple[str, str]] = {
    "elementwise": ("#359cdf", "#519df7"),
    "matmul": ("#a35226", "#b86c31"),
    "reduction": ("#5c906b", "#82bb84"),
    "movement": ("#8c9299", "#6c7278"),
    "norm": ("#6658c2", "#8660ab"),
    "memory": ("#811e49", "#e481aa"),
    "communication": ("#086d74", "#31d1de"),
    "optimizer": ("#af8d0e", "#c6af29"),
}
CATEGORY: dict[str, tuple[str, str]] = {
    "parameter": ("#5d61c9", "#5c85f2"),
    "gradient": ("#9d472d", "#c05614"),
    "activation": ("#3ca378", "#178567"),
    "optimizer_state": ("#a38abc", "#9b548f"),
    "input": ("#03516d", "#4fcbf3"),
    "temporary": ("#a2891a", "#c7b241"),
    "unknown": ("#6f757b", "#969ba2"),
}
STACK = ("parameter", "optimizer_state", "input", "gradient", "activation", "temporary", "unknown")
"""The order of categories in a stacked chart from bottom to top; categories that change least are at the bottom."""
