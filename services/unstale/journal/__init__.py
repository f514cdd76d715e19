"""What a run leaves on disk, so that nothing acknowledged is lost: run directory, events, payload rows, checkpoints."""
