"""Sections of a report, one file each: what it says, its pictures and its tables."""
