#!/bin/bash
# torchrun on several nodes without a scheduler: start the same line on each of them (ssh, pdsh, a fleet manager).
#
#   ./torchrun_nodes.sh RUN HEAD NODES train.py [arguments of train.py]
#
# RUN: id of the run, the same on all nodes and in each later start. HEAD: the node where they meet. NODES: how many.
set -u
run=$1 head=$2 nodes=$3
shift 3
export STABILITY_URL=${STABILITY_URL:-http://stability.example.org:8080}
# From a file on each node: what is on a command line can be read by everybody on the machine.
key=${KEY_FILE:-$HOME/.config/stabilityboard/key}
[ -r "$key" ] && STABILITY_API_KEY=$(<"$key") && export STABILITY_API_KEY
export STABILITY_RUN_ID=$run
export STABILITY_DIR=${NODE_DISK:-/var/tmp/$USER}/stability
# See docs/restart.md: or ranks that are started again may meet those of the start before.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
exec torchrun --nnodes "$nodes" --nproc-per-node "${GPUS:-8}" --max-restarts "${MAX_RESTARTS:-3}" \
    --rdzv-backend c10d --rdzv-id "$run" --rdzv-endpoint "$head:${PORT:-29500}" "$@"
