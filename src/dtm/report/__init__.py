"""Reports of a run: display, figures, model card, export."""
