"""The global model, and the one way in which it changes: staged updates in, a new version out."""
