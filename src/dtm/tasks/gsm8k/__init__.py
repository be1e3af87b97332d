"""GSM8K: word problems with a number as the answer."""
