"""A GPU condition, for the agent of each node: memory rows that were replaced after corrected errors."""

from stabilityclient.agent.gpu.conditions import Condition, register

# NVML_FI_DEV_REMAPPED_COR of nvidia-ml-py: a counter for the GPU's life
register(Condition("remapped_rows", 142, "memory row{} replaced", counts=True))
