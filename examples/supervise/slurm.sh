#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
# Runs the job; when it ends badly, asks what to do next and queues itself again, without the nodes that are suspect.
#
#   sbatch slurm.sh RUN CHECKPOINTS          CHECKPOINTS and this folder: on a disk that all nodes see
#
# A spare instead of the queue: ask for one node more than the job needs (--nodes=5) and set NEED=4. The loop below
# then starts the next attempt inside the same allocation, on the nodes that are left.
set -u
run=$1
checkpoints=$2
need=${NEED:-$SLURM_JOB_NUM_NODES}
here=${HERE:-$SLURM_SUBMIT_DIR}
plan=$checkpoints/plan.json
mkdir -p "$checkpoints"
export STABILITY_RUN_ID="$run"
# Nodes that were not there before have no plan on their disk: all read this one, where there is one.
export STABILITY_PLAN="$plan"
excluded=
# What jobs of this run before us left out; none of it is in our allocation.
before=${EXCLUDED:-}
# A plan names who is suspect now: a node that was left out is forgotten there once the job trains without it. Add up.
together() { python3 -c 'import sys; print(",".join(sorted({n for names in sys.argv[1:] for n in names.split(",") if n})))' "$@"; }

while true; do
    head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | grep -vxF -f <(tr ',' '\n' <<<"${excluded:-/}") | head -n 1)
    srun --nodes="$need" --ntasks="$need" --ntasks-per-node=1 --kill-on-bad-exit=1 ${excluded:+--exclude="$excluded"} \
        torchrun --nnodes "$need" --nproc-per-node "${GPUS:-8}" --max-restarts 0 \
        --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID-$SECONDS" --rdzv-endpoint "$head:29500" \
        "$here/train.py" --checkpoints "$checkpoints"
    code=$?
    [ "$code" -eq 0 ] && exit 0

    stabilityboard plan "$run" --wait 60 --output "$plan"
    case $? in
        40) ;;
        41) named=$(python3 -c 'import json, sys; print(",".join(json.load(open(sys.argv[1]))["exclude_nodes"]))' "$plan")
            excluded=$(together "$excluded" "$named") ;;
        42) exit 42 ;;          # a human has to look: stay out of the queue
        *) exit "$code" ;;      # nothing known: end as the job did
    esac

    left=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | grep -cvxF -f <(tr ',' '\n' <<<"${excluded:-/}"))
    if [ "$left" -lt "$need" ]; then
        # Not enough good nodes here: into the queue again, without them. A job that runs can't be told to avoid a
        # node, so it is a new job; the run is the same, because its id is.
        export EXCLUDED=$(together "$before" "$excluded")
        exec sbatch ${EXCLUDED:+--exclude="$EXCLUDED"} "$here/slurm.sh" "$run" "$checkpoints"
    fi
done
