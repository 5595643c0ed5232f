"""The experiments of the paper, built on the library; the library never imports this."""
