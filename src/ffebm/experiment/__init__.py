"""Data and networks of the paper's experiments, built on the library; the library never imports this."""
