"""Compilation and execution of loop nests as machine code, and bindings of oneDNN.

`nests` turns a `flnb.graph.nests.Nest` into a kernel: `schedule` decides what is computed in which pass over the inner
space, `generator` writes that as LLVM IR, with the instructions of `instructions`, and `llvm` compiles it and stores
the machine code on disk. `runner` calls kernels one after the other and takes the time of each. `sizes` writes the code
of nests of any size, and `composites` makes such nests of composites, for ops that run at once.

`onednn` opens oneDNN's library, `prepared` makes its primitives for given shapes and strides, `primitives` has one
function for each op, and `gemm` has the product of two matrices. `timing` finds the fastest of several ways to compute
an op.
"""
