"""Who works on what, and when a round closes: a pure state machine, events in, actions out."""
