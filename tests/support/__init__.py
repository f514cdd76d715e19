"""Helpers of tests with real sockets: servers, scripted clients, and scrapes."""
