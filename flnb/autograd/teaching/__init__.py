"""Teaching tapes: each shows one idea in few lines and is chosen by name; not meant for daily use."""
