//! The native build. Each layer of the engine is a Zig module with exactly the imports it may have,
//! so a layer breach does not compile. The vector kernels are compiled once per CPU level and all
//! linked into the one library. Python calls the step `python` (hatch_build.py).
//!
//! Steps: the default installs libpccl and its headers; check, test, test-<layer>, sim, mutants,
//! wan, python.
//! How to work with it: docs/internals/HACKING.md.

const std = @import("std");
const builtin = @import("builtin");

comptime {
    const wanted = "0.16.0";
    if (!std.mem.eql(u8, builtin.zig_version_string, wanted)) @compileError(
        "PCCL is built with Zig " ++ wanted ++ ", not " ++ builtin.zig_version_string ++
            ": run `python -m ziglang build` after `pip install ziglang==" ++ wanted ++ "`.",
    );
}

/// The layers in order: each imports only layers above it in this list. The header of every
/// <root> says what it is; docs/internals/ARCHITECTURE.md shows them together.
const layers = [_]struct { name: []const u8, root: []const u8, imports: []const []const u8 }{
    .{ .name = "base", .root = "engine/base/root.zig", .imports = &.{} },
    .{ .name = "kernels", .root = "kernels/root.zig", .imports = &.{"base"} },
    .{ .name = "wire", .root = "engine/wire/root.zig", .imports = &.{"base"} },
    .{ .name = "plan", .root = "engine/plan/root.zig", .imports = &.{"base"} },
    .{
        .name = "protocol",
        .root = "engine/protocol/root.zig",
        .imports = &.{ "base", "wire", "plan" },
    },
    .{
        .name = "collective",
        .root = "engine/collective/root.zig",
        .imports = &.{ "base", "wire", "kernels", "plan" },
    },
    .{
        .name = "session",
        .root = "engine/session/root.zig",
        .imports = &.{ "base", "wire", "kernels", "plan", "protocol", "collective" },
    },
    .{
        .name = "net",
        .root = "engine/net/root.zig",
        .imports = &.{ "base", "wire", "kernels", "protocol", "collective", "session" },
    },
    .{
        .name = "abi",
        .root = "engine/abi/root.zig",
        .imports = &.{ "base", "wire", "kernels", "protocol", "collective", "session", "net" },
    },
};

/// The headers of C programs, and where they are installed: our interface, and that of PCCL 1.0.
const headers = [_]struct { source: []const u8, installed: []const u8 }{
    .{ .source = "include/pccl.h", .installed = "pccl.h" },
    .{ .source = "compat/include/pccl.h", .installed = "compat/pccl.h" },
    .{ .source = "compat/include/ccoip.h", .installed = "compat/ccoip.h" },
    .{ .source = "compat/include/ccoip_inet.h", .installed = "compat/ccoip_inet.h" },
};

/// The CPU levels of each architecture, ascending, each containing the one before.
/// kernels/dispatch.zig knows how to detect them.
const Level = struct { name: []const u8, model: []const u8, features: []const []const u8 = &.{} };

fn levels_of(arch: std.Target.Cpu.Arch) []const Level {
    return switch (arch) {
        .x86_64 => &.{
            .{ .name = "baseline", .model = "x86_64" },
            .{ .name = "v3", .model = "x86_64_v3" },
            .{ .name = "v4", .model = "x86_64_v4" },
            .{
                .name = "v4x",
                .model = "x86_64_v4",
                .features = &.{ "avx512vbmi", "avx512vbmi2", "aes", "vaes" },
            },
        },
        .aarch64 => &.{.{ .name = "baseline", .model = "generic" }},
        else => &.{.{ .name = "baseline", .model = "baseline" }},
    };
}

pub fn build(b: *std.Build) void {
    const target = baseline_target(b, b.standardTargetOptions(.{}));
    const optimize = b.option(
        std.builtin.OptimizeMode,
        "optimize",
        "mode of the library (default ReleaseSafe); the kernels are ReleaseFast in any mode",
    ) orelse .ReleaseSafe;
    const strip = b.option(bool, "strip", "no debug information (default: if optimised)") orelse
        (optimize != .Debug);
    const optimize_tests = b.option(
        std.builtin.OptimizeMode,
        "test-optimize",
        "mode of the unit tests (default Debug, which compiles in a fourth of the time)",
    ) orelse .Debug;
    const tsan = b.option(bool, "tsan", "ThreadSanitizer in library and tests") orelse false;
    const filters = b.option([]const []const u8, "test-filter", "only tests named like this") orelse
        &.{};
    const emulated = b.option(
        bool,
        "emulated",
        "tests of the kernels for Bochs: levels from v4 on, and f16 rounded by integers, since " ++
            "Bochs 2.7 rounds ties of that instruction upward",
    ) orelse false;

    const kernels: Kernels = .init(b, target, emulated, null);
    const library_layers: Layers = .init(b, kernels, .{
        .target = target,
        .optimize = optimize,
        .strip = strip,
        .tsan = tsan,
    });
    const test_layers: Layers = .init(b, kernels, .{
        .target = target,
        .optimize = optimize_tests,
        .strip = false,
        .tsan = tsan,
    });
    const simulated: Simulated = .init(b, kernels, target);

    const library = b.addLibrary(.{
        .name = "pccl",
        .linkage = .dynamic,
        // No version: a versioned name needs symbolic links, and wheels cannot hold any.
        .root_module = library_layers.get("abi"),
        // Zig's own backend, the default in Debug, does not instrument for the sanitizer.
        .use_llvm = if (tsan) true else null,
    });
    if (is_without_compiler_rt(target, optimize, tsan)) library.bundle_compiler_rt = false;
    for (headers) |header| library.installHeader(b.path(header.source), header.installed);
    b.installArtifact(library);

    const check_step = b.step("check", "Compile everything, link nothing");
    const test_step = b.step("test", "Run the unit tests of every layer and of the simulator");
    const test_options: TestOptions = .{
        .filters = filters,
        .tsan = tsan,
        .stress_seed = b.option(u64, "stress-seed", "of the threads of test-abi; else a new one"),
        .stress_rounds = b.option(u64, "stress-rounds", "how long they go on (default 4)"),
        .stress_mib = b.option(u64, "stress-mib", "what test-net gives back, with its times"),
    };
    add_layer_tests(b, library_layers, test_layers, test_options, test_step, check_step);
    add_simulator(b, simulated, test_layers, filters, test_step, check_step);
    add_fuzz(b, simulated, filters);
    add_mutants(b, simulated, target, emulated);
    add_kernel_programs(b, library_layers, filters);
    add_benches(b, library_layers, filters, test_step, check_step);
    add_machine(b);
    add_compat(b, target, library, tsan, check_step);
    add_python(b, target, library, tsan);
}

/// The names of PCCL 1.0: plain C over pccl.h, in the same library.
fn add_compat(
    b: *std.Build,
    target: std.Build.ResolvedTarget,
    library: *std.Build.Step.Compile,
    tsan: bool,
    check_step: *std.Build.Step,
) void {
    const module = b.createModule(.{
        .target = target,
        .optimize = .ReleaseFast,
        .link_libc = true,
        .pic = true,
        .strip = true,
        .sanitize_c = .off,
        .sanitize_thread = tsan,
    });
    for (source_files(b, "compat/c", ".c")) |file| module.addCSourceFile(.{
        .file = b.path(b.pathJoin(&.{ "compat/c", file })),
        .flags = &.{
            "-std=c99",            "-pedantic-errors", "-D_POSIX_C_SOURCE=200809L",
            "-fvisibility=hidden", "-Wall",            "-Wextra",
            "-Werror",
        },
    });
    const object = b.addObject(.{ .name = "compat", .root_module = module });
    library.root_module.addObject(object);
    check_step.dependOn(&object.step);
}

/// Native means this architecture's baseline CPU and, with glibc, version 2.17: what a plain
/// `zig build` makes is what a wheel contains.
fn baseline_target(b: *std.Build, chosen: std.Build.ResolvedTarget) std.Build.ResolvedTarget {
    var query = chosen.query;
    query.cpu_arch = chosen.result.cpu.arch;
    query.cpu_model = .baseline;
    query.os_tag = chosen.result.os.tag;
    query.abi = chosen.result.abi;
    const is_glibc = chosen.result.os.tag == .linux and chosen.result.abi.isGnu();
    if (is_glibc and query.glibc_version == null) {
        query.glibc_version = .{ .major = 2, .minor = 17, .patch = 0 };
    }
    return b.resolveTargetQuery(query);
}

/// The memset of compiler_rt goes byte by byte, and whoever needs anything of compiler_rt gets that
/// instead of libc's. Here the library needs nothing of it (engine/abi/library.zig): if it does one
/// day, it does not link.
fn is_without_compiler_rt(
    target: std.Build.ResolvedTarget,
    optimize: std.builtin.OptimizeMode,
    tsan: bool,
) bool {
    const is_proven = target.result.os.tag == .linux and target.result.cpu.arch == .x86_64;
    return is_proven and optimize != .Debug and !tsan;
}

/// Only net and what is above it calls libc. The others are linked with the one that a system has;
/// that of Windows is compiled here first, which takes longer than everything else together.
fn links_libc(target: std.Build.ResolvedTarget) bool {
    return target.result.os.tag != .windows;
}

/// One object per CPU level, shared by everything that is linked.
const Kernels = struct {
    objects: []*std.Build.Step.Compile,
    options: *std.Build.Module,

    fn init(
        b: *std.Build,
        target: std.Build.ResolvedTarget,
        emulated: bool,
        mutated: ?Mutated,
    ) Kernels {
        const arch = target.result.cpu.arch;
        const levels = levels_of(arch);
        const names = b.allocator.alloc([]const u8, levels.len) catch @panic("OOM");
        const objects = b.allocator.alloc(*std.Build.Step.Compile, levels.len) catch @panic("OOM");

        // Only these files of base: an edit elsewhere in base must not recompile every level.
        const dtype = b.createModule(.{ .root_source_file = b.path("engine/base/dtype.zig") });
        const codec = b.createModule(.{ .root_source_file = b.path("engine/base/codec.zig") });
        const root = "kernels/level.zig";
        for (names, objects, levels) |*name, *object, level| {
            const options = b.addOptions();
            options.addOption([]const u8, "level", level.name);
            options.addOption(bool, "f16_by_integers", emulated);
            const module = b.createModule(.{
                .root_source_file = if (mutated) |from| from.tree.path(b, root) else b.path(root),
                .target = b.resolveTargetQuery(level_query(target.query, arch, level)),
                .optimize = .ReleaseFast,
                .pic = true,
                .strip = true,
                .omit_frame_pointer = true,
                .imports = &.{
                    .{ .name = "dtype", .module = dtype },
                    .{ .name = "codec", .module = codec },
                    .{ .name = "level_options", .module = options.createModule() },
                },
            });
            if (mutated != null) module.addAnonymousImport("mutant", .{
                .root_source_file = b.path("tests/mutants/level_mutant.zig"),
            });
            name.* = level.name;
            object.* = b.addObject(.{
                .name = b.fmt("kernels_{s}", .{level.name}),
                .root_module = module,
            });
        }
        const options = b.addOptions();
        options.addOption([]const []const u8, "levels", names);
        options.addOption([]const u8, "tests_from", if (emulated) "v4" else "baseline");
        return .{ .objects = objects, .options = options.createModule() };
    }

    fn level_query(
        target: std.Target.Query,
        arch: std.Target.Cpu.Arch,
        level: Level,
    ) std.Target.Query {
        var query = target;
        query.cpu_model = if (std.mem.eql(u8, level.model, "baseline"))
            .baseline
        else
            .{ .explicit = arch.parseCpuModel(level.model) catch @panic("unknown CPU model") };
        for (level.features) |wanted| {
            const index = for (arch.allFeaturesList()) |feature| {
                if (std.mem.eql(u8, feature.name, wanted)) break feature.index;
            } else @panic("unknown CPU feature");
            query.cpu_features_add.addFeature(index);
        }
        // The model x86_64_v4 asks for 256-bit vectors where 512 would do; ours are 512 wide.
        if (arch == .x86_64) {
            const prefer_256_bit = @intFromEnum(std.Target.x86.Feature.prefer_256_bit);
            query.cpu_features_sub.addFeature(prefer_256_bit);
        }
        return query;
    }
};

/// One instance of every layer, all built alike.
const Layers = struct {
    modules: [layers.len]*std.Build.Module,

    const Options = struct {
        target: std.Build.ResolvedTarget,
        optimize: std.builtin.OptimizeMode,
        strip: bool,
        tsan: bool,
        /// Copies of the sources that hold all mutations; null: the sources themselves.
        mutated: ?Mutated = null,
        /// The kernels that are linked have theirs: a simulator would only become slower.
        mutates_kernels: bool = false,
    };

    fn init(b: *std.Build, kernels: Kernels, options: Options) Layers {
        var self: Layers = undefined;
        for (&self.modules, layers) |*module, layer| {
            const is_copied =
                options.mutates_kernels or !std.mem.eql(u8, layer.name, "kernels");
            const mutated = if (is_copied) options.mutated else null;
            const copied = if (mutated) |from| from.root_of(b, layer.root) else null;
            module.* = b.createModule(.{
                .root_source_file = copied orelse b.path(layer.root),
                .target = options.target,
                .optimize = options.optimize,
                .strip = options.strip,
                .sanitize_thread = options.tsan,
                .link_libc = links_libc(options.target),
                .pic = true,
            });
            for (layer.imports) |name| module.*.addImport(name, self.get(name));
            if (mutated) |from| module.*.addImport("mutant", from.switches);
        }
        self.get("kernels").addImport("kernels_options", kernels.options);
        self.get("kernels").addAnonymousImport("golden.txt", .{
            .root_source_file = b.path("kernels/golden.txt"),
        });
        for (kernels.objects) |object| self.get("kernels").addObject(object);
        return self;
    }

    fn get(self: *const Layers, name: []const u8) *std.Build.Module {
        for (self.modules, layers) |module, layer| {
            if (std.mem.eql(u8, layer.name, name)) return module;
        }
        @panic("no such layer");
    }
};

/// The layers in which tests/mutants has mutations, copied with all of them behind switches
/// (tests/mutants/generate.zig).
const Mutated = struct {
    tree: std.Build.LazyPath,
    switches: *std.Build.Module,

    const folders = [_][]const u8{
        "engine/base",
        "engine/wire",
        "engine/plan",
        "engine/protocol",
        "engine/collective",
        "engine/session",
        "engine/net",
        "engine/abi",
        "kernels",
    };

    fn init(b: *std.Build) Mutated {
        const generator = b.addExecutable(.{
            .name = "generate-mutants",
            .root_module = b.createModule(.{
                .root_source_file = b.path("tests/mutants/generate.zig"),
                .target = b.graph.host,
                .optimize = .Debug,
            }),
        });
        const run = b.addRunArtifact(generator);
        run.setCwd(b.path("."));
        const tree = run.addOutputDirectoryArg("mutated");
        for (source_files(b, "tests/mutants", ".txt")) |file| {
            const path = b.pathJoin(&.{ "tests/mutants", file });
            if (std.mem.eql(u8, file, "survivors.txt")) continue;
            run.addArg(path);
            run.addFileInput(b.path(path));
        }
        run.addArg("--");
        for (folders) |folder| {
            run.addArg(folder);
            for (source_files(b, folder, ".zig")) |file| {
                run.addFileInput(b.path(b.pathJoin(&.{ folder, file })));
            }
        }
        return .{ .tree = tree, .switches = mutant_module(b, tree.path(b, "list.zig")) };
    }

    fn root_of(mutated: *const Mutated, b: *std.Build, root: []const u8) ?std.Build.LazyPath {
        for (folders) |folder| {
            if (std.mem.startsWith(u8, root, folder)) return mutated.tree.path(b, root);
        }
        return null;
    }
};

/// `list`: of the mutations that are there; null for none.
fn mutant_module(b: *std.Build, list: ?std.Build.LazyPath) *std.Build.Module {
    const empty = "pub const list = [_]@import(\"mutant\").Mutant{};\n";
    const switches = b.createModule(.{ .root_source_file = b.path("tests/mutants/mutant.zig") });
    const listed = b.createModule(.{
        .root_source_file = list orelse b.addWriteFiles().add("list.zig", empty),
    });
    switches.addImport("mutants_listed", listed);
    listed.addImport("mutant", switches);
    return switches;
}

const TestOptions = struct {
    filters: []const []const u8,
    tsan: bool,
    stress_seed: ?u64,
    stress_rounds: ?u64,
    stress_mib: ?u64,

    /// Sets the variables that engine/abi/threads_test.zig and net/loopback_test.zig read. With
    /// one of them they run again, changed or not.
    fn tell_stress(options: TestOptions, b: *std.Build, run: *std.Build.Step.Run) void {
        if (options.stress_seed) |seed| {
            run.setEnvironmentVariable("PCCL_STRESS_SEED", b.fmt("{d}", .{seed}));
            run.has_side_effects = true;
        }
        if (options.stress_rounds) |rounds| {
            run.setEnvironmentVariable("PCCL_STRESS_ROUNDS", b.fmt("{d}", .{rounds}));
            run.has_side_effects = true;
        }
        if (options.stress_mib) |mib| {
            run.setEnvironmentVariable("PCCL_STRESS_MIB", b.fmt("{d}", .{mib}));
            run.has_side_effects = true;
        }
    }
};

fn add_layer_tests(
    b: *std.Build,
    library_layers: Layers,
    test_layers: Layers,
    options: TestOptions,
    test_step: *std.Build.Step,
    check_step: *std.Build.Step,
) void {
    for (layers) |layer| {
        const module = test_layers.get(layer.name);
        if (std.mem.eql(u8, layer.name, "abi")) add_translated_header(b, module);
        const unit_test = b.addTest(.{
            .name = b.fmt("test-{s}", .{layer.name}),
            .root_module = module,
            .filters = options.filters,
            .use_llvm = if (options.tsan) true else null, // as for the library
        });
        const run = b.addRunArtifact(unit_test);
        // Tests find what they need from any directory: here an empty one.
        run.setCwd(b.addWriteFiles().getDirectory());
        if (options.tsan) run.setEnvironmentVariable("TSAN_OPTIONS", "halt_on_error=1");
        if (std.mem.eql(u8, layer.name, "net") or std.mem.eql(u8, layer.name, "abi")) {
            options.tell_stress(b, run);
        }
        // Those of `net` say themselves how many there are.
        if (options.tsan) run.setEnvironmentVariable("PCCL_WORKERS", "2");
        var last = &run.step;
        if (options.tsan and std.mem.eql(u8, layer.name, "net")) {
            const control = add_race(b, test_layers);
            control.dependOn(last);
            last = control;
        }
        if (std.mem.eql(u8, layer.name, "kernels")) {
            // Their coverage depends on the CPU, which no cache knows.
            run.has_side_effects = true;
            last = add_levels(b, library_layers.get(layer.name), last);
        }
        const name = b.fmt("test-{s}", .{layer.name});
        b.step(name, b.fmt("Run the unit tests of {s}", .{layer.name})).dependOn(last);
        test_step.dependOn(last);

        const compile_only = b.addTest(.{
            .name = b.fmt("check-{s}", .{layer.name}),
            .root_module = module,
        });
        check_step.dependOn(&compile_only.step);
    }
}

/// pccl.h in Zig, with which engine/abi/header_test.zig compares what is exported.
fn add_translated_header(b: *std.Build, module: *std.Build.Module) void {
    const translated = b.addTranslateC(.{
        .root_source_file = b.path("include/pccl.h"),
        .target = module.resolved_target.?,
        .optimize = module.optimize.?,
    });
    module.addImport("header", translated.createModule());
}

/// The control of the sanitizer: a program with a race in the engine, which it must report.
fn add_race(b: *std.Build, test_layers: Layers) *std.Build.Step {
    const net = test_layers.get("net");
    const program = b.addExecutable(.{
        .name = "race",
        .root_module = b.createModule(.{
            .root_source_file = b.path("tests/threads/race.zig"),
            .target = net.resolved_target,
            .optimize = net.optimize,
            .link_libc = true,
            .sanitize_thread = true,
            .imports = &.{.{ .name = "net", .module = net }},
        }),
        .use_llvm = true,
    });
    const run = b.addRunArtifact(program);
    run.setName("race, which must be reported");
    run.setEnvironmentVariable("TSAN_OPTIONS", "exitcode=66");
    run.expectExitCode(66);
    run.addCheck(.{ .expect_stderr_match = "WARNING: ThreadSanitizer: data race" });
    return &run.step;
}

/// Programs for a machine that has other CPU levels than this one: `kernel-tests` and
/// `kernel-bench` in <prefix>/bin. Static with -Dtarget=x86_64-linux-musl.
fn add_kernel_programs(
    b: *std.Build,
    library_layers: Layers,
    filters: []const []const u8,
) void {
    const kernels = library_layers.get("kernels");
    const tests = b.addTest(.{
        .name = "kernel-tests",
        .root_module = kernels,
        .filters = filters,
    });
    const test_step = b.step("kernel-tests", "Build the tests of the kernels as a program");
    test_step.dependOn(&b.addInstallArtifact(tests, .{}).step);

    const bench = b.addExecutable(.{
        .name = "kernel-bench",
        .root_module = b.createModule(.{
            .root_source_file = b.path("kernels/bench.zig"),
            .target = kernels.resolved_target,
            .optimize = .ReleaseFast,
            .link_libc = true,
            // As the library, else Zig 0.16 crashes on its debug information.
            .strip = true,
            .pic = true,
            .imports = &.{.{ .name = "kernels", .module = kernels }},
        }),
    });
    const bench_step = b.step("kernel-bench", "Build a program that measures the kernels");
    bench_step.dependOn(&b.addInstallArtifact(bench, .{}).step);
}

/// Programs that measure a part of the engine alone: <prefix>/bin/<name>.
const benches = [_]struct {
    name: []const u8,
    root: []const u8,
    imports: []const []const u8,
    about: []const u8,
}{
    .{
        .name = "coordinator-bench",
        .root = "engine/protocol/bench.zig",
        .imports = &.{ "base", "wire", "protocol" },
        .about = "Build a program that measures the coordinator",
    },
    .{
        .name = "planner-bench",
        .root = "engine/plan/bench.zig",
        .imports = &.{ "base", "plan" },
        .about = "Build a program that plans the paths of matrices",
    },
    .{
        .name = "workers-bench",
        .root = "engine/net/worker_bench.zig",
        .imports = &.{ "base", "kernels", "net" },
        .about = "Build a program that measures the handing over of jobs to threads",
    },
};

fn add_benches(
    b: *std.Build,
    library_layers: Layers,
    filters: []const []const u8,
    test_step: *std.Build.Step,
    check_step: *std.Build.Step,
) void {
    const base = library_layers.get("base");
    for (benches) |program| {
        const module = b.createModule(.{
            .root_source_file = b.path(program.root),
            .target = base.resolved_target,
            .optimize = base.optimize,
            .strip = base.strip,
            .link_libc = true,
        });
        for (program.imports) |name| module.addImport(name, library_layers.get(name));
        const bench = b.addExecutable(.{ .name = program.name, .root_module = module });
        const step = b.step(program.name, program.about);
        step.dependOn(&b.addInstallArtifact(bench, .{}).step);

        const check_name = b.fmt("check-{s}", .{program.name});
        const compile_only = b.addExecutable(.{ .name = check_name, .root_module = module });
        check_step.dependOn(&compile_only.step);
    }
    add_wan(b, base.resolved_target.?, filters, test_step, check_step);
}

/// The emulated network of `python -m bench wan`, <prefix>/bin/wan, which only Linux can run.
fn add_wan(
    b: *std.Build,
    target: std.Build.ResolvedTarget,
    filters: []const []const u8,
    test_step: *std.Build.Step,
    check_step: *std.Build.Step,
) void {
    const step = b.step("wan", "Build the emulated network of `python -m bench wan`");
    const own_tests = b.step("test-wan", "Run the unit tests of the emulated network");
    if (target.result.os.tag != .linux) return;
    const root = b.path("bench/wan/main.zig");
    const emulator = b.addExecutable(.{
        .name = "wan",
        .root_module = b.createModule(.{
            .root_source_file = root,
            .target = target,
            .optimize = .ReleaseSafe,
        }),
    });
    step.dependOn(&b.addInstallArtifact(emulator, .{}).step);

    const unit_test = b.addTest(.{
        .name = "test-wan",
        .root_module = b.createModule(.{ .root_source_file = root, .target = target }),
        .filters = filters,
    });
    own_tests.dependOn(&b.addRunArtifact(unit_test).step);
    test_step.dependOn(own_tests);
    const compile_only = b.addExecutable(.{
        .name = "check-wan",
        .root_module = emulator.root_module,
    });
    check_step.dependOn(&compile_only.step);
}

/// The code beneath a program on an emulated CPU (tests/emulated).
fn add_machine(b: *std.Build) void {
    const module = b.createModule(.{
        .root_source_file = b.path("tests/emulated/machine.zig"),
        .target = b.resolveTargetQuery(.{
            .cpu_arch = .x86_64,
            .cpu_model = .baseline,
            .os_tag = .freestanding,
            .abi = .none,
            // A system call leaves the vector registers as they were.
            .cpu_features_sub = std.Target.x86.featureSet(&.{ .sse, .sse2, .mmx, .x87 }),
            .cpu_features_add = std.Target.x86.featureSet(&.{.soft_float}),
        }),
        .optimize = .ReleaseSmall,
        .strip = true,
        .red_zone = false,
    });
    const machine = b.addExecutable(.{ .name = "machine", .root_module = module });
    machine.setLinkerScript(b.path("tests/emulated/machine.ld"));
    const step = b.step("machine", "Build what runs beneath a program on an emulated CPU");
    step.dependOn(&b.addInstallArtifact(machine, .{}).step);
}

/// After the tests of the kernels: which CPU levels they could not run on this machine, and the
/// golden digests in a release build.
fn add_levels(
    b: *std.Build,
    kernels: *std.Build.Module,
    tests: *std.Build.Step,
) *std.Build.Step {
    const module = b.createModule(.{
        .root_source_file = b.path("kernels/levels.zig"),
        .target = kernels.resolved_target,
        .optimize = .ReleaseFast,
        .link_libc = links_libc(kernels.resolved_target.?),
        .strip = true, // as the library, else Zig 0.16 crashes on its debug information
        .pic = true,
        .imports = &.{.{ .name = "kernels", .module = kernels }},
    });
    const program = b.addExecutable(.{ .name = "kernel-levels", .root_module = module });
    const alone = b.addRunArtifact(program);
    alone.stdio = .inherit;
    b.step("golden", "Compare what the kernels make with golden.txt").dependOn(&alone.step);

    const run = b.addRunArtifact(program);
    run.stdio = .inherit;
    run.step.dependOn(tests);
    return &run.step;
}

/// The fuzz targets, ReleaseSafe as all that simulates. `zig build fuzz --fuzz=1M` is guided by
/// coverage, for so many runs of each; without that it runs what is kept, as test-sim does.
fn add_fuzz(b: *std.Build, simulated: Simulated, filters: []const []const u8) void {
    const targets = b.addTest(.{
        .name = "test-fuzz",
        .root_module = simulated.fuzz,
        .filters = filters,
    });
    const run = b.addRunArtifact(targets);
    b.step("fuzz", "Run the fuzz targets; with --fuzz=1M guided by coverage").dependOn(&run.step);
}

/// The simulator with the engine as it is, and with mutations that can be switched on.
const Simulated = struct {
    plain: *std.Build.Module,
    mutated: *std.Build.Module,
    /// The fuzz targets with the engine as it is.
    fuzz: *std.Build.Module,
    mutated_layers: Layers,
    copies: Mutated,

    fn init(
        b: *std.Build,
        kernels: Kernels,
        target: std.Build.ResolvedTarget,
    ) Simulated {
        var options: Layers.Options = .{
            .target = target,
            .optimize = .ReleaseSafe,
            .strip = false,
            .tsan = false,
        };
        const plain_layers: Layers = .init(b, kernels, options);
        const mutated: Mutated = .init(b);
        options.mutated = mutated;
        const mutated_layers: Layers = .init(b, kernels, options);
        return .{
            .plain = module_of(b, plain_layers, mutant_module(b, null)),
            .mutated = module_of(b, mutated_layers, mutated.switches),
            .fuzz = fuzz_of(b, plain_layers),
            .mutated_layers = mutated_layers,
            .copies = mutated,
        };
    }

    fn module_of(
        b: *std.Build,
        simulated: Layers,
        switches: *std.Build.Module,
    ) *std.Build.Module {
        const base = simulated.get("base");
        const module = b.createModule(.{
            .root_source_file = b.path("tests/sim/main.zig"),
            .target = base.resolved_target,
            .optimize = base.optimize,
            .link_libc = links_libc(base.resolved_target.?),
        });
        // All that has no socket and no clock.
        const names = [_][]const u8{
            "base", "kernels", "wire", "plan", "protocol", "collective", "session",
        };
        for (names) |name| module.addImport(name, simulated.get(name));
        module.addImport("mutant", switches);
        module.addImport("fuzz", fuzz_of(b, simulated));
        return module;
    }

    fn fuzz_of(b: *std.Build, simulated: Layers) *std.Build.Module {
        const base = simulated.get("base");
        const module = b.createModule(.{
            .root_source_file = b.path("tests/fuzz/root.zig"),
            .target = base.resolved_target,
            .optimize = base.optimize,
            .link_libc = links_libc(base.resolved_target.?),
        });
        for ([_][]const u8{ "base", "wire", "protocol", "session" }) |name| {
            module.addImport(name, simulated.get(name));
        }
        return module;
    }
};

fn add_simulator(
    b: *std.Build,
    simulated: Simulated,
    test_layers: Layers,
    filters: []const []const u8,
    test_step: *std.Build.Step,
    check_step: *std.Build.Step,
) void {
    const simulator = b.addExecutable(.{ .name = "pccl-sim", .root_module = simulated.plain });
    const sim_step = b.step("sim", "Build the simulator, zig-out/bin/pccl-sim");
    sim_step.dependOn(&b.addInstallArtifact(simulator, .{}).step);

    const unit_test = b.addTest(.{
        .name = "test-sim",
        .root_module = Simulated.module_of(b, test_layers, mutant_module(b, null)),
        .filters = filters,
    });
    const run = b.addRunArtifact(unit_test);
    b.step("test-sim", "Run the simulator's own unit tests").dependOn(&run.step);
    test_step.dependOn(&run.step);

    const generator_test = b.addTest(.{
        .name = "test-mutants",
        .root_module = b.createModule(.{
            .root_source_file = b.path("tests/mutants/generate.zig"),
            .target = b.graph.host,
        }),
    });
    const generator_run = b.addRunArtifact(generator_test);
    b.step("test-mutants", "Run the unit tests of what makes the mutated copies")
        .dependOn(&generator_run.step);
    test_step.dependOn(&generator_run.step);

    const compile_only = b.addExecutable(.{
        .name = "check-sim",
        .root_module = simulated.plain,
    });
    check_step.dependOn(&compile_only.step);
}

/// The programs that tests/mutants/run.py drives, in <prefix>/mutants: the simulator and the unit
/// tests of six layers, each with all mutations in it. `kernels` has those of kernels/.
/// Static with -Dtarget=x86_64-linux-musl.
fn add_mutants(
    b: *std.Build,
    simulated: Simulated,
    target: std.Build.ResolvedTarget,
    emulated: bool,
) void {
    const mutated = simulated.copies;
    const kernels: Layers = .init(b, .init(b, target, emulated, mutated), .{
        .target = target,
        .optimize = .ReleaseSafe,
        .strip = false,
        .tsan = false,
        .mutated = mutated,
        .mutates_kernels = true,
    });
    const step = b.step("mutants", "Build what `make mutants` runs, zig-out/mutants");
    const folder: std.Build.Step.InstallArtifact.Options = .{
        .dest_dir = .{ .override = .{ .custom = "mutants" } },
    };
    const simulator = b.addExecutable(.{ .name = "pccl-sim", .root_module = simulated.mutated });
    const install = b.addInstallArtifact(simulator, folder);
    b.step("mutated-sim", "Build the one of `make simulator`, zig-out/mutants/pccl-sim")
        .dependOn(&install.step);
    step.dependOn(&install.step);
    const check = b.step("check-mutants", "Compile the mutated copies, link nothing");
    const layers_of = simulated.mutated_layers;
    add_translated_header(b, layers_of.get("abi"));
    for ([_]struct { []const u8, Layers }{
        .{ "plan", layers_of },       .{ "protocol", layers_of },
        .{ "collective", layers_of }, .{ "session", layers_of },
        .{ "net", layers_of },        .{ "abi", layers_of },
        .{ "kernels", kernels },
    }) |entry| {
        const name, const from = entry;
        const unit_test = b.addTest(.{
            .name = b.fmt("test-{s}", .{name}),
            .root_module = from.get(name),
            .test_runner = .{ .path = b.path("tests/mutants/test_runner.zig"), .mode = .simple },
        });
        step.dependOn(&b.addInstallArtifact(unit_test, folder).step);
    }
    const compile_only = b.addExecutable(.{
        .name = "check-mutants",
        .root_module = simulated.mutated,
    });
    check.dependOn(&compile_only.step);
    for ([_]*std.Build.Module{ layers_of.get("abi"), kernels.get("kernels") }) |module| {
        const tests_only = b.addTest(.{
            .name = "check-mutants-alone",
            .root_module = module,
            .test_runner = .{ .path = b.path("tests/mutants/test_runner.zig"), .mode = .simple },
        });
        check.dependOn(&tests_only.step);
    }
}

/// The nanobind extension with the library beside it, in <prefix>/pccl_py. hatch_build.py passes
/// the options; without them the step says so.
fn add_python(
    b: *std.Build,
    target: std.Build.ResolvedTarget,
    library: *std.Build.Step.Compile,
    tsan: bool,
) void {
    const step = b.step("python", "Build the Python extension into <prefix>/pccl_py");
    const python_include = b.option(
        []const []const u8,
        "python-include",
        "folder of Python.h, and more that it includes; may be given again",
    );
    const nanobind = b.option([]const u8, "nanobind", "folder of the nanobind package");
    const ext_name = b.option([]const u8, "ext-name", "file name of the extension") orelse
        "_pccl.so";
    const abi3 = b.option(bool, "abi3", "stable ABI (needs headers of Python 3.12 or later)") orelse
        false;
    if (python_include == null or nanobind == null) {
        const fail = b.addFail("the step `python` needs -Dpython-include and -Dnanobind; " ++
            "`pip install .` passes them");
        step.dependOn(&fail.step);
        return;
    }

    const options: std.Build.Module.CreateOptions = .{
        .target = target,
        .optimize = .ReleaseFast,
        .link_libc = true,
        .link_libcpp = true,
        .pic = true,
        .strip = true,
        .sanitize_c = .off,
    };
    // An object of its own, which needs no library: it is compiled while the library is.
    const sources = b.createModule(options);
    for (python_include.?) |folder| sources.addSystemIncludePath(.{ .cwd_relative = folder });
    add_bindings(b, sources, nanobind.?, .{ .abi3 = abi3, .is_nanobind = false, .tsan = tsan });

    const module = b.createModule(options);
    module.addObject(b.addObject(.{ .name = "bindings", .root_module = sources }));
    // Not linkLibrary, which would put a folder of the build cache into the search path.
    module.addObjectFile(library.getEmittedBin());
    module.addRPathSpecial(if (target.result.os.tag == .macos) "@loader_path" else "$ORIGIN");

    const extension = b.addLibrary(.{
        .name = "_pccl",
        .linkage = .dynamic,
        .root_module = module,
    });
    extension.linker_allow_shlib_undefined = true; // Python's symbols come from the interpreter
    extension.link_gc_sections = true;
    extension.each_lib_rpath = false; // for the same reason

    install_python(b, step, extension, ext_name, library, jax_library(b, target, library));
}

/// All that the step makes, in the folder of the package.
fn install_python(
    b: *std.Build,
    step: *std.Build.Step,
    extension: *std.Build.Step.Compile,
    ext_name: []const u8,
    library: *std.Build.Step.Compile,
    jax: *std.Build.Step.Compile,
) void {
    const folder = "pccl_py";
    for ([_]*std.Build.Step.InstallFile{
        b.addInstallFile(extension.getEmittedBin(), b.pathJoin(&.{ folder, ext_name })),
        b.addInstallFile(library.getEmittedBin(), b.pathJoin(&.{ folder, library.out_filename })),
        b.addInstallFile(jax.getEmittedBin(), b.pathJoin(&.{ folder, jax.out_filename })),
    }) |install| step.dependOn(&install.step);
    for (headers) |header| {
        const to = b.pathJoin(&.{ folder, "include", header.installed });
        step.dependOn(&b.addInstallFile(b.path(header.source), to).step);
    }
}

/// The C++ of bindings/, and nanobind, whose own source is among it.
fn add_bindings(b: *std.Build, module: *std.Build.Module, nanobind: []const u8, cpp: Cpp) void {
    module.addIncludePath(b.path("include"));
    for ([_][]const u8{ "include", "ext/robin_map/include", "src" }) |folder| {
        module.addSystemIncludePath(.{ .cwd_relative = b.pathJoin(&.{ nanobind, folder }) });
    }
    for (source_files(b, "bindings", ".cpp")) |file| {
        var own = cpp;
        own.is_nanobind = std.mem.eql(u8, file, "nb_all.cpp");
        module.addCSourceFile(.{
            .file = b.path(b.pathJoin(&.{ "bindings", file })),
            .flags = cpp_flags(b, own),
        });
    }
}

/// The handlers that programs compiled by JAX call: plain C on a copy of XLA's header, so that no
/// jaxlib is needed here. They find libpccl beside them.
fn jax_library(
    b: *std.Build,
    target: std.Build.ResolvedTarget,
    library: *std.Build.Step.Compile,
) *std.Build.Step.Compile {
    const module = b.createModule(.{
        .target = target,
        .optimize = .ReleaseFast,
        .link_libc = true,
        .pic = true,
        .strip = true,
        .sanitize_c = .off,
    });
    module.addIncludePath(b.path("include"));
    module.addSystemIncludePath(b.path("bindings/third_party/xla_ffi"));
    for (source_files(b, "bindings", ".c")) |file| module.addCSourceFile(.{
        .file = b.path(b.pathJoin(&.{ "bindings", file })),
        .flags = &.{ "-std=c11", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror" },
    });
    module.addObjectFile(library.getEmittedBin());
    module.addRPathSpecial(if (target.result.os.tag == .macos) "@loader_path" else "$ORIGIN");
    const jax = b.addLibrary(.{ .name = "pccl_jax", .linkage = .dynamic, .root_module = module });
    jax.link_gc_sections = true;
    jax.each_lib_rpath = false; // as of the extension
    return jax;
}

const Cpp = struct { abi3: bool, is_nanobind: bool, tsan: bool };

fn cpp_flags(b: *std.Build, cpp: Cpp) []const []const u8 {
    const common: []const []const u8 = &.{
        "-std=c++17",
        "-fvisibility=hidden",
        "-DNDEBUG",
        "-DNB_COMPACT_ASSERTIONS",
        "-ffunction-sections",
        "-fdata-sections",
        "-fno-stack-protector",
    };
    const stable: []const []const u8 = if (cpp.abi3) &.{"-DPy_LIMITED_API=0x030C0000"} else &.{};
    // Nanobind's own source is not ours to warn about.
    const own: []const []const u8 = if (cpp.is_nanobind)
        &.{ "-fno-strict-aliasing", "-DNB_BUILD" }
    else
        &.{ "-Wall", "-Wextra" };
    // The flag alone: the runtime is that of libpccl, which must be loaded before everything else.
    const sanitized: []const []const u8 = if (cpp.tsan) &.{ "-fsanitize=thread", "-g" } else &.{};
    const all = [_][]const []const u8{ common, stable, own, sanitized };
    return std.mem.concat(b.allocator, []const u8, &all) catch @panic("OOM");
}

/// The files of a folder with this suffix, sorted: a new source file needs no line here.
fn source_files(b: *std.Build, folder: []const u8, suffix: []const u8) []const []const u8 {
    const io = b.graph.io;
    var files: std.ArrayList([]const u8) = .empty;
    var dir = b.build_root.handle.openDir(io, folder, .{ .iterate = true }) catch |err|
        std.debug.panic("cannot open {s}: {t}", .{ folder, err });
    defer dir.close(io);
    var entries = dir.iterate();
    while (true) {
        const entry = entries.next(io) catch |err|
            std.debug.panic("cannot list {s}: {t}", .{ folder, err }) orelse break;
        if (!std.mem.endsWith(u8, entry.name, suffix)) continue;
        files.append(b.allocator, b.dupe(entry.name)) catch @panic("OOM");
    }
    std.mem.sort([]const u8, files.items, {}, struct {
        fn before(_: void, x: []const u8, y: []const u8) bool {
            return std.mem.lessThan(u8, x, y);
        }
    }.before);
    return files.items;
}
