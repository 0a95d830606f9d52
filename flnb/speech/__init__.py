"""Speech: so far, sequence criteria by search over lattices."""

from flnb.speech.lattice import Acceptor, beam_search_loss, best_path, bigram, ctc_target, path_score, target_of

__all__ = ["Acceptor", "beam_search_loss", "best_path", "bigram", "ctc_target", "path_score", "target_of"]
