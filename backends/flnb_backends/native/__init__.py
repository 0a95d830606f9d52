"""Compilation and execution of loop nests as machine code, and bindings of oneDNN.

`nests` converts a `flnb.graph.nests.Nest` to a kernel in three stages. `schedule` assigns computations to passes over
the inner space, `generator` writes the passes as LLVM IR by means of `instructions`, and `llvm` compiles the IR and
stores the machine code on disk. `runner` calls kernels one after the other and measures the time of each. `sizes`
writes code that works for nests of any size, and `composites` makes such nests of composites, for ops that run at once.

`onednn` opens oneDNN's library, `prepared` makes its primitives for given shapes and strides, `primitives` has one
function for each op, and `gemm` has the product of two matrices. `timing` finds the fastest of several ways to compute
an op.
"""
