#!/bin/sh
# One node: torchrun starts the ranks again when they end, up to --max-restarts times. When it gives up, or when the
# job ended well, the exit code says what the launcher around it should do (docs/restart.md).
#
#   ./torchrun.sh RUN CHECKPOINTS [arguments of train.py]
set -u
run=$1
checkpoints=$2
shift 2
here=$(dirname "$0")
mkdir -p "$checkpoints"
export STABILITY_RUN_ID="$run"
# Or torchrun lets the ranks of every start meet in one store, and a rank may read the address that another one had in
# the start before: they hang, or are refused (pytorch/pytorch#135712).
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1

while true; do
    torchrun --standalone --nproc-per-node "${RANKS:-2}" --max-restarts "${MAX_RESTARTS:-3}" \
        "$here/train.py" --checkpoints "$checkpoints" "$@" && exit 0
    # What ended so often may need people: the plan knows whether the starts came any further.
    stabilityboard plan "$run" --wait 30
    next=$?
    case $next in
        40) ;;                # start again, here
        41) exit 41 ;;        # this node is suspect: only who started us can choose another one
        *) exit "$next" ;;    # 42: a human has to look; 0: nothing to do; 1: the server can't be asked
    esac
done
