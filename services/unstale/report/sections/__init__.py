"""Sections of a report, one module each: sentences, pictures and tables."""
