"""`python -m ffebm` is `ffebm`."""

from ffebm.experiment.command_line import main

if __name__ == "__main__":
    main()
