"""What goes wrong on the way: one toxic a file, each pure. One message in flight in, none, one or several out."""
