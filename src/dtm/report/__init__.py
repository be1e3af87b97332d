"""Figures and pages made from what a run has written."""
