"""What clients do: data, shares, models, local training, evaluation."""
