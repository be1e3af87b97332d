"""4×4 Sudoku, given as sixteen digits row by row with 0 for an empty cell."""
