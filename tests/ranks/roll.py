"""One rank of a test of the roll call, without a framework: ``python roll.py BEAT_S HOW [RANK]``.

HOW: kill, stop, fail; RANK (default 1) does it in its phase ``work``, when all are present.
"""

import os
import signal
import sys
import time
from pathlib import Path

from mlhpc.common.ranks import environment, launch, rollcall
from mlhpc.errors import UserError

rollcall.BEAT_S = float(sys.argv[1])
how, who = sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 1
info = environment.identify(os.environ)
try:
    roll_call = launch.call_roll(info, os.environ, timeout_s=30)
except UserError as error:
    sys.exit(f"mlhpc: {error}")
roll_call.on_loss = lambda loss: print(f"callback of {info.rank}: {loss.reason}")
roll_call.enter(f"work of {info.rank}")
roll_call.start_beating()
assert roll_call.broadcast({"answer": info.rank}) == {"answer": 0}
Path(os.environ["SIGNS"], str(info.rank)).write_text(str(os.getpid()))
while not all(Path(os.environ["SIGNS"], str(rank)).exists() for rank in range(info.size)):
    time.sleep(0.01)
time.sleep(0.3)  # until all messages have been read: the reset of a killed rank may discard them
if info.rank == who:
    match how:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "fail":
            roll_call.fail("ValueError: no such voxel")
            sys.exit(1)
if how == "finish":
    while not Path(os.environ["SIGNS"], "finish").exists():
        time.sleep(0.05)
    roll_call.close()
    sys.exit(0)
time.sleep(600)  # as in a collective without end
