"""Speech recognition: training criteria over sequences, and decoding by beam search."""

from flnb.ops.documentation import readable
from flnb.speech.acceptors import START, Acceptor, Arc, bigram, ctc, forced, lexicon
from flnb.speech.beam_search import beam_search_loss, best_path, common_states, path_score

__all__ = [
    "START", "Acceptor", "Arc", "beam_search_loss", "best_path", "bigram", "common_states", "ctc", "forced", "lexicon",
    "path_score",
]  # fmt: skip

for _name in __all__:
    readable(globals()[_name])
