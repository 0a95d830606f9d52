"""Compilation and execution of loop nests as machine code, and bindings of oneDNN.

`nests` turns a `flnb.graph.nests.Nest` into a kernel: `schedule` decides what is computed in which pass over the inner
space, `generator` writes that as LLVM's IR, with the instructions of `instructions`, and `llvm` compiles it and stores
the machine code on disk. `runner` calls kernels one after the other and takes the time.

`onednn` opens the library, `prepared` makes primitives for given shapes and strides, `primitives` has one function for
each op, `gemm` the product of two matrices. `timing` finds the quickest of several ways to compute the same.
"""
