#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --open-mode=append
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
# The same for a job that is longer than the time limit: before that is over it is queued again, under its number.
# Where Slurm itself queues it again (preemption, a node that failed) nothing has to be done.
#
#   sbatch slurm_requeue.sh train.py [arguments of train.py]       slurm.sh: in the same folder
set -u
# Slurm then ends all tasks with SIGTERM, and with SIGKILL after its KillWait (30 s): time for a last checkpoint.
trap 'scontrol requeue "$SLURM_JOB_ID"' USR1
bash "${HERE:-$SLURM_SUBMIT_DIR}/slurm.sh" "$@" &
job=$!
# A signal ends the first wait, not the job.
wait "$job"
wait "$job"
