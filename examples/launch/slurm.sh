#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --open-mode=append
# Plain srun: a task is a rank. docs/launch.md says why each line is there.
#
#   sbatch slurm.sh train.py [arguments of train.py]
set -u
export STABILITY_URL=${STABILITY_URL:-http://stability.example.org:8080}
# From a file that only you can read: a job's script and what it was submitted with are kept by Slurm.
key=${KEY_FILE:-$HOME/.config/stabilityboard/key}
[ -r "$key" ] && STABILITY_API_KEY=$(<"$key") && export STABILITY_API_KEY
# A job that is queued again keeps its number, and so its run.
export STABILITY_RUN_ID=${STABILITY_RUN_ID:-llm-7b-$SLURM_JOB_ID}
# On the node's own disk, where it outlives the job: not $TMPDIR, nor a /tmp that each job has of its own.
export STABILITY_DIR=${NODE_DISK:-/var/tmp/$USER}/stability
# Where the ranks of torch.distributed meet.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR MASTER_PORT=${MASTER_PORT:-29500}

# The ranks' own variables are for torch: the client knows Slurm's. The node has the name that Slurm can exclude.
srun --kill-on-bad-exit=1 bash -c '
    export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS
    export STABILITY_NODE=$SLURMD_NODENAME
    exec python3 "$@"' rank "$@"
