"""Messages to a dashboard about a live or finished run: frames with changes, and answers to requests."""
