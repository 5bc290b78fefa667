"""Runs a static Linux program on an emulated CPU that has what this one may lack (AVX-512).

`make test-avx512` runs the tests of the kernels so. The emulator is Bochs; what is beneath the
program there is machine.zig. Here are made the files that Bochs loads: the ROM with the first
instructions, the machine, and a disk with the program and the arguments on its stack. Output is
passed on as it comes. The exit status is the program's; 124 at the end of the time, 125 if it could
not be run.
"""

from __future__ import annotations

import argparse
import os
import pty
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20
PAGE = 4096
GUEST_MIB = 1024
MACHINE_BEGIN = MIB  # as in machine.ld; the program's stack grows down to the machine
MACHINE_BYTES = 128 << 10  # Bochs puts no more where it should, since its blocks are not larger
ROM_BYTES = 64 << 10
ROM_BEGIN = (1 << 32) - ROM_BYTES
CYLINDER_BYTES = 16 * 63 * 512

INSTALL = "apt install --no-install-recommends bochs bochs-term"

EXIT_TIMEOUT = 124
EXIT_NOT_RUN = 125

# No file of Bochs' own is needed: it takes a VGA ROM from anywhere, and nothing calls it.
CONFIGURATION = """\
display_library: term
plugin_ctrl: unmapped=1, biosdev=0, speaker=0, extfpuirq=0, gameport=0, parallel=0, serial=1
cpu: model={cpu}, count=1, ips=100000000, reset_on_triple_fault=0
memory: guest={guest}, host={guest}
romimage: file="{folder}/rom"
vgaromimage: file="{folder}/rom"
optramimage1: file="{folder}/machine", address=0x{machine:x}
ata0-master: type=disk, mode=flat, path="{folder}/disk", cylinders={cylinders}, heads=16, spt=63
com1: enabled=1, mode=file, dev="{folder}/serial"
clock: sync=none
sound: driver=dummy
log: "{folder}/log"
panic: action=fatal
error: action=report
"""


@dataclass
class Segment:
    address: int
    data: bytes
    size: int


@dataclass
class Program:
    """The parts to load of a static ELF file for x86-64."""

    entry: int
    headers: bytes
    headers_address: int
    segments: list[Segment]

    @staticmethod
    def read(path: Path) -> Program:
        data = path.read_bytes()
        if data[:5] != b"\x7fELF\x02" or struct.unpack_from("<HH", data, 16) != (2, 62):
            raise ValueError(f"{path} is not a static program for x86-64 at fixed addresses")
        entry, at = struct.unpack_from("<QQ", data, 24)
        size, count = struct.unpack_from("<HH", data, 54)
        segments, headers_address = [], 0
        for n in range(count):
            kind, _, offset, address, _, in_file, in_memory, _ = struct.unpack_from(
                "<IIQQQQQQ", data, at + n * size
            )
            if kind == 1:  # PT_LOAD
                segments.append(Segment(address, data[offset : offset + in_file], in_memory))
                if offset <= at < offset + in_file:
                    headers_address = address + at - offset
            if kind == 3:  # PT_INTERP
                raise ValueError(f"{path} needs a dynamic linker; build it for x86_64-linux-musl")
        return Program(entry, data[at : at + size * count], headers_address, segments)


def stack_of(program: Program, arguments: list[str], top: int) -> tuple[int, bytes]:
    """The bytes below `top` with which Linux starts a program, and where they begin."""
    strings = b"\0" * 16 + b"".join(a.encode() + b"\0" for a in arguments)
    at = top - len(strings)
    random, pointers = at, []
    at += 16
    for argument in arguments:
        pointers.append(at)
        at += len(argument.encode()) + 1
    header_bytes = 56
    auxiliary = {
        3: program.headers_address,
        4: header_bytes,
        5: len(program.headers) // header_bytes,
        6: 4096,  # bytes of a page
        9: program.entry,
        25: random,
        0: 0,
    }
    words = [len(pointers), *pointers, 0, 0]  # no environment
    for key, value in auxiliary.items():
        words += [key, value]
    begin = (top - len(strings) - 8 * len(words)) & -16
    block = struct.pack(f"<{len(words)}Q", *words)
    return begin, block.ljust(top - len(strings) - begin, b"\0") + strings


def write_images(folder: Path, machine: Program, program: Program, arguments: list[str]) -> None:
    """The files that Bochs loads: the ROM, the machine, and a disk with all of the program."""
    first = min(segment.address for segment in program.segments) & -PAGE
    begin, block = stack_of(program, arguments, first)
    if first - begin > PAGE:
        raise ValueError("the arguments are longer than a page")
    image = first - PAGE
    parts = [Segment(begin, block, len(block)), *program.segments]
    end = max(part.address + part.size for part in parts)
    disk_bytes = (end - image + CYLINDER_BYTES - 1) // CYLINDER_BYTES * CYLINDER_BYTES
    write_parts(folder / "disk", image, disk_bytes, parts)

    map_begin = (image + disk_bytes + PAGE - 1) // PAGE * PAGE
    handover = (image, disk_bytes // 512, program.entry, begin, map_begin, GUEST_MIB * MIB)
    below = [segment for segment in machine.segments if segment.address < first]
    rom = [segment for segment in machine.segments if segment.address >= ROM_BEGIN]
    below.append(Segment(MACHINE_BEGIN, struct.pack("<6Q", *handover), 48))
    write_parts(folder / "machine", MACHINE_BEGIN, MACHINE_BYTES, below)
    write_parts(folder / "rom", ROM_BEGIN, ROM_BYTES, rom)


def write_parts(path: Path, begin: int, size: int, parts: list[Segment]) -> None:
    """A file with every part at its address, and zeros between."""
    image = bytearray(size)
    for part in parts:
        at = part.address - begin
        if at < 0 or at + part.size > size:
            raise ValueError(f"{path.name}: no room at 0x{part.address:x} for {part.size} bytes")
        image[at : at + len(part.data)] = part.data
    path.write_bytes(image)


class Emulator:
    """Bochs on a terminal of its own, where its display and its debugger are; nobody sees them."""

    def __init__(self, folder: Path, cpu: str) -> None:
        self.folder = folder
        self.screen = b""
        (folder / "bochsrc").write_text(
            CONFIGURATION.format(
                cpu=cpu,
                folder=folder,
                guest=GUEST_MIB,
                machine=MACHINE_BEGIN,
                cylinders=(folder / "disk").stat().st_size // CYLINDER_BYTES,
            )
        )
        os.mkfifo(folder / "serial")
        # Also for writing, so that it does not end before Bochs opens it.
        self.serial = os.open(folder / "serial", os.O_RDWR)
        self.terminal, theirs = pty.openpty()
        self.process = subprocess.Popen(
            ["bochs", "-q", "-f", str(folder / "bochsrc")],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "vt100"},
            start_new_session=True,
        )
        os.close(theirs)
        # For the debugger, which Debian's Bochs has and which stops before the first instruction.
        os.write(self.terminal, b"continue\n")

    def run(self, seconds: float) -> int:
        """Passes on the program's output; its exit status, which is the last line."""
        end = time.monotonic() + seconds
        pending = b""
        while True:
            left = end - time.monotonic()
            ready, _, _ = select.select([self.serial, self.terminal], [], [], max(0, left))
            if self.serial in ready:
                pending += os.read(self.serial, 1 << 16)
                text, mark, rest = pending.partition(b"\n\x04exit ")
                if mark and rest.endswith(b"\n"):
                    show(text + b"\n")
                    return int(rest)
                if not mark:
                    # Bytes that may begin the last line are kept.
                    keep = len(pending) - pending.rfind(b"\n") if b"\n" in pending[-9:] else 0
                    show(pending[: len(pending) - keep])
                    pending = pending[len(pending) - keep :]
            elif self.terminal in ready:
                try:
                    self.screen = (self.screen + os.read(self.terminal, 1 << 16))[-8192:]
                except OSError:  # how a terminal says that its program has ended
                    return self.ended()
            elif left <= 0:
                show(pending + b"\n")
                complain(f"no end after {seconds / 60:.0f} minutes; above is how far it came")
                return EXIT_TIMEOUT

    def ended(self) -> int:
        log = self.folder / "log"
        text = self.screen + (log.read_bytes() if log.exists() else b"")
        said = [line.strip() for line in text.decode(errors="replace").splitlines()]
        panics = [line for line in said if "PANIC" in line]
        reasons = "\n".join(["Bochs has ended before the program", *panics, *said[-3:]])
        complain(f"{reasons}\nIf what it lacks is the display `term`: {INSTALL}")
        return EXIT_NOT_RUN

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.terminal)
        os.close(self.serial)


def show(output: bytes) -> None:
    sys.stdout.buffer.write(output)
    sys.stdout.buffer.flush()


def complain(message: str) -> None:
    sys.stderr.write(f"emulate: {message}\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("machine", type=Path, help="of `zig build machine`")
    parser.add_argument("program", type=Path, help="of `zig build kernel-tests`, for example")
    parser.add_argument("arguments", nargs="*", help="of the program")
    parser.add_argument("--cpu", default="tigerlake", help="one of `bochs --help cpu`")
    parser.add_argument("--minutes", type=float, default=60)
    options = parser.parse_args()
    if shutil.which("bochs") is None:
        complain(f"bochs is missing: {INSTALL}")
        return EXIT_NOT_RUN
    with tempfile.TemporaryDirectory(prefix="emulate-") as name:
        folder = Path(name)
        try:
            program = Program.read(options.program)
            arguments = [options.program.name, *options.arguments]
            write_images(folder, Program.read(options.machine), program, arguments)
        except (OSError, ValueError) as error:
            complain(str(error))
            return EXIT_NOT_RUN
        emulator = Emulator(folder, options.cpu)
        try:
            return emulator.run(options.minutes * 60)
        finally:
            emulator.close()


if __name__ == "__main__":
    sys.exit(main())
