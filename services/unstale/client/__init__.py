"""The client process: a session for each hosted client, one worker that trains for all of them."""
