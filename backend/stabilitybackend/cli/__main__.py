"""``python -m stabilitybackend.cli`` is the program ``stabilityboard``."""

from stabilitybackend.cli.app import main

if __name__ == "__main__":
    main()
