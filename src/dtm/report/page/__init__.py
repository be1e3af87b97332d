"""The run page: one self-contained HTML file, made from the files of a run's folder."""
