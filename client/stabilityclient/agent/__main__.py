"""``python -m stabilityclient.agent RUN_FOLDER``: run the node's agent until the job is over and everything is delivered."""

from __future__ import annotations

import sys

from stabilityclient.agent.service import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
