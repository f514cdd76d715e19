"""The client of unstale without PyTorch: takes part in a run with a training loop of your own."""
