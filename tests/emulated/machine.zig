//! The machine code beneath a static Linux program on an emulated CPU: from reset to 64-bit mode
//! with AVX-512 switched on; the program is read from the disk and run without privileges, and its
//! few system calls are answered. No BIOS, no interrupts, one address space; output leaves by the
//! serial port, the exit status behind it. emulate.py makes the disk and runs the emulator;
//! machine.ld says where in memory this is.

const std = @import("std");

/// Written here by emulate.py: where the contents of the disk belong, the first instruction, the
/// stack with arguments and auxiliary vector, and the memory that may be mapped.
const Handover = extern struct {
    image: u64,
    sectors: u64,
    entry: u64,
    stack: u64,
    map_begin: u64,
    map_end: u64,
};

export var handover: Handover linksection(".handover") = .{
    .image = 0,
    .sectors = 0,
    .entry = 0,
    .stack = 0,
    .map_begin = 0,
    .map_end = 0,
};

comptime {
    asm (
        \\.section .reset, "ax"
        \\.code16
        \\.globl _start
        \\_start:
        \\    cli
        \\    lgdtl %cs:(0x10000 + gdt_pointer - reset_end)
        \\    mov %cr0, %eax
        \\    or $1, %eax
        \\    mov %eax, %cr0
        \\    ljmpl $24, $protected
        \\gdt_pointer:
        \\    .word 63
        \\    .long gdt
        \\.org 0xf0
        \\    jmp _start
        \\.org 0x100
        \\reset_end:
        \\
        \\.text
        \\.code32
        \\protected:
        \\    mov $16, %eax
        \\    mov %eax, %ds
        \\    mov %eax, %es
        \\    mov %eax, %ss
        \\    mov $0x40620, %eax      # CR4: PAE, SSE, its exceptions, XSAVE
        \\    mov %eax, %cr4
        \\    mov $tables, %eax
        \\    mov %eax, %cr3
        \\    mov $0xc0000080, %ecx   # EFER: system calls, long mode
        \\    mov $0x101, %eax
        \\    xor %edx, %edx
        \\    wrmsr
        \\    mov $0x80000033, %eax   # CR0: paging, FPU without emulation
        \\    mov %eax, %cr0
        \\    ljmp $8, $long
        \\.code64
        \\long:
        \\    xor %ecx, %ecx
        \\    mov $0xe7, %eax         # XCR0: x87, SSE, AVX, AVX-512
        \\    xor %edx, %edx
        \\    xsetbv
        \\    mov $stack_end, %esp
        \\    call begin
        \\
        \\.globl enter
        \\enter:                      # (entry, stack)
        \\    mov %rsi, %rsp
        \\    xor %edx, %edx
        \\    mov %rdi, %rcx
        \\    mov $2, %r11d           # flags: none
        \\    sysretq
        \\
        \\# All registers but rax are given back as they were; what is compiled from Zig here uses
        \\# no vectors.
        \\.globl system_call_entry
        \\system_call_entry:
        \\    mov %rsp, program_stack(%rip)
        \\    mov $stack_end, %esp
        \\    push %rcx
        \\    push %rdi
        \\    push %rsi
        \\    push %rdx
        \\    push %r8
        \\    push %r9
        \\    push %r10
        \\    push %r11
        \\    mov %rdx, %rcx
        \\    mov %rsi, %rdx
        \\    mov %rdi, %rsi
        \\    mov %rax, %rdi
        \\    call system_call
        \\    pop %r11
        \\    pop %r10
        \\    pop %r9
        \\    pop %r8
        \\    pop %rdx
        \\    pop %rsi
        \\    pop %rdi
        \\    pop %rcx
        \\    mov program_stack(%rip), %rsp
        \\    sysretq
        \\
        \\.altmacro
        \\.macro exception_entry number
        \\.balign 16
        \\    pushq $\number
        \\    jmp exception_common
        \\.endm
        \\.balign 16
        \\.globl exception_entries
        \\exception_entries:
        \\.set number, 0
        \\.rept 32
        \\    exception_entry %number
        \\.set number, number + 1
        \\.endr
        \\exception_common:
        \\    mov %rsp, %rdi
        \\    call exception
        \\
        \\.data
        \\.balign 16
        \\.globl gdt
        \\gdt:
        \\    .quad 0
        \\    .quad 0x00af9a000000ffff    # 8: code, 64 bits
        \\    .quad 0x00cf92000000ffff    # 16: data
        \\    .quad 0x00cf9a000000ffff    # 24: code, 32 bits
        \\    .quad 0x00cff2000000ffff    # 32: data of the program
        \\    .quad 0x00affa000000ffff    # 40: code of the program
        \\    .quad 0x0000890000000067    # 48: task, whose address is added by begin
        \\    .quad 0
        \\.balign 4096
        \\tables:                         # Four pages of 1 GiB at their own addresses
        \\    .quad directory + 7
        \\    .fill 511, 8, 0
        \\directory:
        \\    .quad 0x87, 0x40000087, 0x80000087, 0xc0000087
        \\    .fill 508, 8, 0
        \\
        \\.bss
        \\program_stack:
        \\    .quad 0
        \\.balign 16
        \\    .skip 65536
        \\.globl stack_end
        \\stack_end:
    );
}

extern fn enter(entry: u64, stack: u64) callconv(.c) noreturn;
extern const system_call_entry: u8;
extern const exception_entries: [32][16]u8;
extern const stack_end: u8;
extern var gdt: [8]u64;

const Gate = extern struct {
    low: u16,
    selector: u16 = 8,
    kind: u16 = 0x8e00, // an interrupt gate
    middle: u16,
    high: u32,
    zero: u32 = 0,
};
var gates: [32]Gate align(16) = undefined;
const GatesPointer = extern struct { limit: u16 align(1), base: u64 align(1) };

/// The task segment: of interest is only where the stack is when an exception leaves the program.
var task: extern struct { before: u32, stack: u64 align(4), rest: [23]u32 } = undefined;

const star = 0xc000_0081;
const lstar = 0xc000_0082;
const flag_mask = 0xc000_0084;
const fs_base = 0xc000_0100;

export fn begin() callconv(.c) noreturn {
    for (&gates, &exception_entries) |*gate, *entry| {
        const address = @intFromPtr(entry);
        gate.* = .{
            .low = @truncate(address),
            .middle = @truncate(address >> 16),
            .high = @truncate(address >> 32),
        };
    }
    const pointer: GatesPointer = .{
        .limit = @sizeOf(@TypeOf(gates)) - 1,
        .base = @intFromPtr(&gates),
    };
    asm volatile ("lidt (%[at])"
        :
        : [at] "r" (&pointer),
        : .{ .memory = true });

    task.stack = @intFromPtr(&stack_end);
    gdt[6] |= @intFromPtr(&task) << 16; // all of this is below 16 MiB
    asm volatile ("ltr %[selector]"
        :
        : [selector] "r" (@as(u16, 48)),
        : .{ .memory = true });

    write_register(star, 8 << 32 | 24 << 48);
    write_register(lstar, @intFromPtr(&system_call_entry));
    write_register(flag_mask, 0x700); // traps, interrupts, direction
    serial_begin();
    read_disk();
    mapped_to = handover.map_begin;
    enter(handover.entry, handover.stack);
}

/// The image from the first disk, a sector at a time.
fn read_disk() void {
    const port = 0x1f0;
    var to = handover.image;
    for (0..handover.sectors) |sector| {
        out(port + 2, 1); // sectors
        out(port + 3, @truncate(sector));
        out(port + 4, @truncate(sector >> 8));
        out(port + 5, @truncate(sector >> 16));
        out(port + 6, 0xe0); // the first disk, by the number of the sector
        out(port + 7, 0x20); // read
        while (in(port + 7) & 0x88 != 0x08) {} // busy, or without data
        to = asm volatile ("rep insw"
            : [end] "={rdi}" (-> u64),
            : [to] "{rdi}" (to),
              [words] "{rcx}" (@as(u64, 256)),
              [port] "{dx}" (@as(u16, port)),
            : .{ .memory = true, .rcx = true });
    }
}

fn write_register(number: u32, value: u64) void {
    asm volatile ("wrmsr"
        :
        : [number] "{ecx}" (number),
          [low] "{eax}" (@as(u32, @truncate(value))),
          [high] "{edx}" (@as(u32, @truncate(value >> 32))),
    );
}

// ---- System calls -----------------------------------------------------------------------------

const linux = std.os.linux;
const SYS = linux.SYS;

/// Memory is mapped upwards and given back only if it was mapped last.
var mapped_to: u64 = 0;
var seconds: u64 = 0;

export fn system_call(number: u64, a: u64, b: u64, c: u64) callconv(.c) i64 {
    const call: SYS = @enumFromInt(number);
    switch (call) {
        .write => return write(b, c),
        .writev => {
            const parts: [*]const [2]u64 = @ptrFromInt(b);
            var total: i64 = 0;
            for (parts[0..c]) |part| total += write(part[0], part[1]);
            return total;
        },
        .mmap => return map(b),
        .munmap => {
            if (a + page_aligned(b) == mapped_to) mapped_to = a;
            return 0;
        },
        .brk, .madvise, .mprotect => return 0,
        .rt_sigaction, .rt_sigprocmask, .sigaltstack => return 0,
        .set_tid_address, .gettid, .getpid => return 1,
        .arch_prctl => {
            if (a != 0x1002) return failed(.INVAL); // ARCH_SET_FS
            write_register(fs_base, b);
            return 0;
        },
        .clock_gettime => {
            seconds += 1; // a clock that goes on is all that is asked of it
            const time: *[2]u64 = @ptrFromInt(b);
            time.* = .{ seconds, 0 };
            return 0;
        },
        .sched_getaffinity => {
            const set: *u64 = @ptrFromInt(c);
            set.* = 1;
            return 8;
        },
        .tkill, .tgkill => end(134), // abort
        .exit, .exit_group => end(@truncate(a)),
        .readlink, .readlinkat, .open, .openat => return failed(.NOENT),
        .ioctl => return failed(.NOTTY),
        .prlimit64, .getrlimit => return failed(.NOSYS),
        else => {
            say("\n[system call ");
            say_number(number, 10);
            say(" is not known here]\n");
            return failed(.NOSYS);
        },
    }
}

fn failed(code: linux.E) i64 {
    return -@as(i64, @intFromEnum(code));
}

fn page_aligned(bytes: u64) u64 {
    return std.mem.alignForward(u64, bytes, 4096);
}

fn map(bytes: u64) i64 {
    const size = page_aligned(bytes);
    if (size > handover.map_end - mapped_to) return failed(.NOMEM);
    const at = mapped_to;
    mapped_to += size;
    asm volatile ("rep stosq"
        :
        : [to] "{rdi}" (at),
          [count] "{rcx}" (size / 8),
          [value] "{rax}" (@as(u64, 0)),
        : .{ .memory = true, .rdi = true, .rcx = true });
    return @intCast(at);
}

// ---- The serial port, and the end ---------------------------------------------------------------

const serial = 0x3f8;

fn serial_begin() void {
    out(serial + 3, 0x83); // what follows is the divisor: 115,200 bits per second
    out(serial, 1);
    out(serial + 1, 0);
    out(serial + 3, 0x03); // 8 bits
}

fn write(address: u64, count: u64) i64 {
    const bytes: [*]const u8 = @ptrFromInt(address);
    say(bytes[0..count]);
    return @intCast(count);
}

fn say(text: []const u8) void {
    for (text) |byte| {
        while (in(serial + 5) & 0x20 == 0) {} // the transmitter holds a byte
        out(serial, byte);
    }
}

fn say_number(value: u64, radix: u64) void {
    if (value >= radix) say_number(value / radix, radix);
    say("0123456789abcdef"[value % radix ..][0..1]);
}

/// The status in a line that no program writes; emulate.py ends the emulator when it has it.
fn end(status: u8) noreturn {
    say("\n\x04exit ");
    say_number(status, 10);
    say("\n");
    while (true) asm volatile ("hlt");
}

/// A CPU exception: its number, then what the CPU has put on the stack.
export fn exception(frame: [*]const u64) callconv(.c) noreturn {
    const address = asm volatile ("mov %%cr2, %[address]"
        : [address] "=r" (-> u64),
    );
    say("\nexception ");
    say_number(frame[0], 10);
    say(" (6: unknown instruction, 13: protection, 14: page); on the stack:");
    for (frame[1..5]) |word| {
        say(" ");
        say_number(word, 16);
    }
    say("; address ");
    say_number(address, 16);
    say("\n");
    end(139);
}

fn in(port: u16) u8 {
    return asm volatile ("inb %[port], %[value]"
        : [value] "={al}" (-> u8),
        : [port] "{dx}" (port),
    );
}

fn out(port: u16, value: u8) void {
    asm volatile ("outb %[value], %[port]"
        :
        : [value] "{al}" (value),
          [port] "{dx}" (port),
    );
}

pub const panic = std.debug.no_panic;
