"""A command kind, for the agent of each node: ``stabilityboard task RUN disk_space`` says what is left on the disks."""

import shutil

from stabilityclient.agent.commands.tasks import TaskCall, register


@register("disk_space")
def disk_space(call: TaskCall) -> str:
    free = {place: shutil.disk_usage(place).free / 2**30 for place in (call.folder, "/")}
    return f"spool {free[call.folder]:.0f} GiB free, / {free['/']:.0f} GiB free"
