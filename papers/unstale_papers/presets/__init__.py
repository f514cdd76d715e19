"""One function for each published table or figure: its cells, complete, and the numbers that were published."""
