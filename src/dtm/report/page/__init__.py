"""The run page: one self-contained HTML file made from what a run has written to its folder."""
