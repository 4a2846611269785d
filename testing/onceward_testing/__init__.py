"""Fakes for users and for us."""
