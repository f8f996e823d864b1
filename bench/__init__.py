"""Measurements of both sides in one run; never imported by the worker."""
