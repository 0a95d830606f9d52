"""Tapes to learn from: each shows one idea in few lines, is chosen by its name, and is not meant for daily use."""
