"""Kernels launched without Triton's own Python are those that it would have launched, with the same arguments."""

from fake_cuda.library import devices
from smoke.fake_cuda.conftest import run

PROGRAM = """
import torch, triton, triton.language as tl
from triton.compiler.compiler import CompiledKernel
from triton.runtime.jit import JITFunction
from mlhpc.common.kernels.launch import Kernel

@Kernel
def scale(x, y, count, factor, LEAK: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < count, other=0.0) * factor + LEAK
    tl.store(y + at, value.to(y.dtype.element_ty), mask=at < count)

launched, through = [], []
run, way = CompiledKernel.run.fget, JITFunction.run

def record(kernel):
    def recorded(*words):
        numbers = [word.data_ptr() if isinstance(word, torch.Tensor) else word for word in words[9:]]
        launched.append((kernel.hash, words[:4], numbers))
        return run(kernel)(*words)
    return recorded

CompiledKernel.run = property(record)
JITFunction.run = lambda *words, **more: (through.append(1), way(*words, **more))[1]

wide = torch.zeros(4096, device="cuda")
half = wide.to(torch.float16)
side = torch.cuda.Stream()
CASES = [
    ((wide, half, 1024, 2.0), {"LEAK": 0.3}),
    ((wide, half, 1024, 0.5), {"LEAK": 0.3}),
    ((half, half, 1024, 2.0), {"LEAK": 0.3}),
    ((wide, half, 1, 2.0), {"LEAK": 0.3}),
    ((wide, half, 1023, 2.0), {"LEAK": 0.3}),
    ((wide, half, 2**33, 2.0), {"LEAK": 0.3}),
    ((wide, half, 1024, 2.0), {"LEAK": 0.5}),
    ((wide, half, 1024, 2.0), {"LEAK": 0.3, "num_warps": 2}),
    ((wide, half[1:], 1024, 2.0), {"LEAK": 0.3}),  # begins at no multiple of 16 bytes
    ((wide[2:], half, 1024, 2.0), {"LEAK": 0.3}),
]
for round in range(2):
    with torch.cuda.stream(side if round else torch.cuda.default_stream()):
        for arguments, constants in CASES:
            through.clear()
            scale.launch((4, 1), *arguments, **constants, BLOCK=256)
            own, direct = launched.pop(), not through
            scale.jit[4, 1](*arguments, **constants, BLOCK=256)
            assert own == launched.pop() and not launched, (arguments, constants)
            aligned = all(tensor.data_ptr() % 16 == 0 for tensor in arguments[:2])
            assert direct == (round > 0 and aligned), (arguments, constants)
through.clear()
scale.launch((4, 1), wide, half.cpu(), 1024, 2.0, LEAK=0.3, BLOCK=256)
assert through  # Triton refuses it
print("equal")
"""


def test_the_kernels_and_arguments_are_tritons(tmp_path):
    program = tmp_path / "program.py"  # Triton reads its kernels' source
    program.write_text(PROGRAM)
    done = run([program], devices())
    assert done.stdout == "equal\n", done.stderr
