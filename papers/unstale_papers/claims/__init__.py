"""The claims of all papers with their verdicts, of whatever results there are."""
