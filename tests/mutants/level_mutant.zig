//! level_mutant: the switch of mutant.zig for the kernels of a CPU level, which are compiled apart.

extern var pccl_mutant: u16;

pub inline fn on(comptime number: u16) bool {
    return pccl_mutant == number;
}
