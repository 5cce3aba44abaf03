"""Targets of classification and regression."""
