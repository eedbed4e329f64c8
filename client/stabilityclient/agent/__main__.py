"""``python -m stabilityclient.agent RUN_FOLDER``: the node's agent, until the job has ended and all is delivered."""

from __future__ import annotations

import sys

from stabilityclient.agent.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
