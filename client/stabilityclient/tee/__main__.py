"""Runs ``python -m stabilityclient.tee``."""

from stabilityclient.tee.command import main

if __name__ == "__main__":
    main()
