"""What a dashboard is sent about a run, live or finished: frames of what is new, and answers to its requests."""
