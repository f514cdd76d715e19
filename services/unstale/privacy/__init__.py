"""The privacy of clients: an audit of the data that an inverting server could reconstruct."""
