"""Tapes to learn from: each shows one idea, is found by its name, and is not meant for daily use."""
