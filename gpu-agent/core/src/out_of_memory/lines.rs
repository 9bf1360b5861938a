//! Classifies one line of output as evidence about GPU memory.
//!
//! The names of the error come from the libraries' sources: drivers and runtimes (`cuda.h`, `driver_types.h`),
//! the allocators of the frameworks, and programs that print their own sentences.

/// What a line means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineMeaning {
    /// GPU memory ran out, by the library of that name.
    OutOfMemory {
        /// The library or program that prints such lines.
        stack: &'static str,
        /// Whether it is a limit of the program itself, so that the driver refuses nothing.
        is_own_limit: bool,
        /// Whether the line is an exception or a program's final error, and not part of a log.
        is_error: bool,
    },
    /// The error was expected, and the program continues.
    Handled,
    /// The program makes progress.
    Progress,
    /// It ends by an error of another kind.
    OtherError,
    /// A new exception that the one before it caused.
    Chained,
    /// A program's trace begins.
    Trace,
    /// Nothing.
    Other,
}

/// A text that names the error, the library that prints it, and whether it is a limit of the
/// program itself.
type Name = (&'static str, &'static str, bool);

/// Texts that name the error anywhere in a line, in lower case.
const NAMES: [Name; 58] = [
    ("cuda out of memory", "PyTorch", false),
    ("hip out of memory", "PyTorch", false),
    ("torch.outofmemoryerror", "PyTorch", false),
    ("torch.cuda.outofmemoryerror", "PyTorch", false),
    ("c10::outofmemoryerror", "PyTorch", false),
    ("cuda error: out of memory", "CUDA", false),
    ("cuda error:out of memory", "CUDA", false),
    ("cuda runtime error (2)", "CUDA", false),
    ("cuda runtime (out of memory)", "TensorRT", false),
    ("cuda driver error: out of memory", "CUDA", false),
    ("cuda driver error 2", "CUDA", false),
    ("cuda failure 2:", "ONNX Runtime", false),
    ("cuda failure 'out of memory'", "NCCL", false),
    ("cuda failure 2 'out of memory'", "NCCL", false),
    ("cudaerrormemoryallocation", "CUDA", false),
    ("cuda_error_out_of_memory", "CUDA", false),
    ("cuda_out_of_memory", "CUDA", false),
    ("error_out_of_memory", "CUDA.jl", false),
    ("cudamalloc failed: out of memory", "llama.cpp", false),
    ("cudamalloc failed with error 2", "CUDA", false),
    ("cudamallocasync failed", "CUDA", false),
    ("cuda error 2: out of memory", "CUDA", false),
    ("cuda error #2", "CUDA", false),
    ("cuda error 2 ", "CUDA", false),
    ("gpu out of memory", "CUDA", false),
    ("gpu ran out of memory", "CUDA", false),
    ("out of gpu memory", "CUDA.jl", false),
    ("outofgpumemoryerror", "CUDA.jl", false),
    ("out of device memory", "CUDA", false),
    ("out of memory on gpu", "CUDA", false),
    ("out of memory on device", "CUDA", false),
    ("not enough gpu memory", "CUDA", false),
    ("insufficient gpu memory", "CUDA", false),
    ("insufficient memory on accelerator", "LAMMPS", false),
    ("insufficient device memory", "CUDA", false),
    ("not enough device memory", "CUDA", false),
    ("unable to allocate cuda", "llama.cpp", false),
    ("failed to allocate cuda", "llama.cpp", false),
    ("cublas_status_alloc_failed", "cuBLAS", false),
    ("cudnn_status_alloc_failed", "cuDNN", false),
    ("cusolver_status_alloc_failed", "cuSOLVER", false),
    ("cusparse_status_alloc_failed", "cuSPARSE", false),
    ("cusparse_status_insufficient_resources", "cuSPARSE", false),
    ("curand_status_allocation_failed", "cuRAND", false),
    ("cufft_alloc_failed", "cuFFT", false),
    ("cudnn_status_internal_error_device_allocation_failed", "cuDNN", false),
    ("cudnn_status_execution_failed_out_of_memory", "cuDNN", false),
    ("memoryallocation: out of memory", "CUDA", false),
    ("cupy.cuda.memory.outofmemoryerror", "CuPy", false),
    ("maximum pool size exceeded", "RMM", true),
    ("failed to allocate device memory", "CUDA", false),
    ("could not allocate device memory", "CUDA", false),
    ("could not allocate gpu memory", "CUDA", false),
    ("failed to allocate gpu memory", "CUDA", false),
    ("unable to allocate gpu memory", "CUDA", false),
    ("unable to allocate device memory", "CUDA", false),
    ("no available memory for the cache blocks", "vLLM", true),
    ("no available memory for kv cache", "vLLM", true),
];

/// Pairs of texts that name the error together, in lower case: neither does alone.
const PAIRS: [(&str, &str, &str, bool); 40] = [
    ("resource_exhausted", "out of memory", "JAX", false),
    ("resource exhausted", "out of memory", "JAX", false),
    ("resource_exhausted", "failed to allocate request for", "JAX", false),
    ("resource_exhausted", "oom when allocating", "TensorFlow", false),
    ("resourceexhaustederror", "oom when allocating", "TensorFlow", false),
    ("resourceexhaustederror", "out of memory", "TensorFlow", false),
    ("resourceexhaustederror", "failed to allocate", "TensorFlow", false),
    ("oom when allocating tensor", "gpu", "TensorFlow", false),
    ("failed to allocate", "for new constant", "JAX", false),
    ("cuda error in", "out of memory", "TensorRT", false),
    ("cuda error", "out of memory", "CUDA", false),
    ("cudaerror", "out of memory", "CUDA", false),
    ("cuda failure", "out of memory", "CUDA", false),
    ("cuda_check", "out of memory", "CUDA", false),
    ("cudacheck", "out of memory", "CUDA", false),
    ("cuda runtime error", "out of memory", "CUDA", false),
    ("cuda driver", "out of memory", "CUDA", false),
    ("cuda exception", "out of memory", "CUDA", false),
    ("error code 2", "outofmemory", "TensorRT", false),
    ("cudamalloc", "out of memory", "CUDA", false),
    ("cudamalloc", "memory allocation", "CUDA", false),
    ("cumemalloc", "out of memory", "Numba", false),
    ("cumemcreate", "out of memory", "CUDA", false),
    ("cuctxcreate", "out of memory", "CUDA", false),
    ("cudalloc", "out of memory", "CUDA", false),
    ("cudastreamcreate", "out of memory", "CUDA", false),
    ("cudafree", "out of memory", "CUDA", false),
    ("std::bad_alloc", "cuda", "RMM", false),
    ("std::bad_alloc", "rmm", "RMM", false),
    ("out of memory allocating", "allocated so far", "CuPy", false),
    ("out of memory to allocate", "bytes", "CuPy", false),
    ("bfcarena", "failed to allocate memory for requested buffer", "ONNX Runtime", false),
    ("gpu", "out of memory", "CUDA", false),
    ("device", "out of memory", "CUDA", false),
    ("thrust::", "out of memory", "Thrust", false),
    ("kokkos", "failed to allocate", "Kokkos", false),
    ("triton", "out of memory", "Triton", false),
    ("allocation of device buffer", "failed", "GROMACS", false),
    ("kv cache", "larger than the available kv cache memory", "vLLM", true),
    ("kv cache", "larger than the maximum number of tokens", "vLLM", true),
];

/// Texts which show that the host's memory is meant, in lower case.
const HOST: [&str; 22] = [
    "defaultcpuallocator",
    "cpu_alloc",
    "numpy.core._exceptions",
    "numpy._core._exceptions",
    "unable to allocate array",
    "cannot allocate memory",
    "host memory",
    "pinned memory",
    "cuda_host",
    "cudahostalloc",
    "cudamallochost",
    "cumemhostalloc",
    "cumemallochost",
    "shared memory",
    "/dev/shm",
    "oom-kill",
    "oom_kill",
    "oom killer",
    "memory cgroup",
    "by allocator cpu",
    "device:cpu:",
    "raylet",
];

/// Texts of lines that only speak about the error, or report that it was survived, in lower case.
const HANDLED: [&str; 71] = [
    "did not raise",
    "trial ",
    "\"cuda out of memory\"",
    "not a failure",
    "retry",
    "trying again",
    "try again with",
    "falling back",
    "fall back",
    "fallback",
    "recovered",
    "recovering",
    "reducing batch",
    "reduce the batch size and continue",
    "reducing the batch",
    "reducing micro",
    "halving",
    "lowering batch",
    "decreasing batch",
    "batch size reduced",
    "reduced batch size",
    "reduced to",
    "skipping",
    "skipped",
    "ignoring",
    "ignored",
    "will be skipped",
    "skip batch",
    "caught",
    "handled",
    "continuing",
    "resuming",
    "offloading to cpu",
    "moving to cpu",
    "switching to cpu",
    "switching to tiled",
    "using cpu instead",
    "attempting to free",
    "emptying cache",
    "freeing cached",
    "clearing cache",
    "spilling",
    "did not fit",
    "does not fit",
    "not run out of memory",
    "no out of memory",
    "no oom",
    "to avoid",
    "avoid cuda out",
    "to prevent",
    "prevents",
    "in case of",
    "if you run out",
    "if you get",
    "if you see",
    "if you encounter",
    "if you are running out",
    "can cause",
    "may cause",
    "might cause",
    "may run out",
    "could run out",
    "will likely",
    "risk of",
    "simulat",
    "inject",
    "expected",
    "passed",
    "xfail",
    "best so far",
    "tactic",
];

/// Texts of lines by which a program makes progress, in lower case.
const PROGRESS: [&str; 20] = [
    "epoch ",
    "epoch:",
    "step ",
    "step:",
    "step=",
    "iter ",
    "iteration ",
    "iter:",
    "loss=",
    "loss:",
    "it/s",
    "s/it",
    "throughput",
    "tokens/s",
    "samples/s",
    "saved checkpoint",
    "saving checkpoint",
    "checkpoint saved",
    "accuracy",
    "eval ",
];

/// Exceptions that are never about memory, even if their text names it.
const OTHER_EXCEPTIONS: [&str; 8] = [
    "filenotfounderror",
    "modulenotfounderror",
    "importerror",
    "nameerror:",
    "syntaxerror",
    "keyerror:",
    "assertionerror",
    "argumenterror",
];

/// Errors with which a launcher or another rank reports an end that has another cause, in lower
/// case.
const CONSEQUENCES: [&str; 34] = [
    "childfailederror",
    "calledprocesserror",
    "processraisedexception",
    "processexitedexception",
    "distbackenderror",
    "distnetworkerror",
    "diststoreerror",
    "connectionreseterror",
    "connectionrefusederror",
    "brokenpipeerror",
    "eoferror",
    "raytaskerror",
    "rayactorerror",
    "actordiederror",
    "enginedeaderror",
    "enginegenerateerror",
    "asyncenginedeaderror",
    "engine core initialization failed",
    "engine process failed to start",
    "workerproc initialization failed",
    "systemexit",
    "keyboardinterrupt",
    "broken process pool",
    "brokenprocesspool",
    "pickle data was truncated",
    "process group",
    "failed core proc",
    "killedworker",
    "job failed",
    "failed to load model",
    "unable to load model",
    "failed to create context",
    "model loading error",
    "execution failed",
];

/// Returns what a line means.
pub fn meaning(line: &str) -> LineMeaning {
    let lower = line.to_ascii_lowercase();
    let has = |texts: &[&str]| texts.iter().any(|text| lower.contains(text));
    if lower.contains("the above exception was the direct cause of")
        || lower.contains("during handling of the above exception")
    {
        return LineMeaning::Chained;
    }
    if let Some(Named { stack, is_own_limit, at }) = name(&lower) {
        if has(&HOST) {
            return LineMeaning::Other;
        }
        if is_exception(line) && has(&OTHER_EXCEPTIONS) {
            return LineMeaning::OtherError;
        }
        // A pool that its program limited.
        let is_own_limit = is_own_limit || lower.contains("limit set to");
        let is_error = is_error(line);
        // An exception's text may give advice ("try setting max_split_size_mb to avoid fragmentation").
        if has(&HANDLED) && !(is_error && is_exception(line)) {
            return LineMeaning::Handled;
        }
        if is_quoted(&lower) || (!is_exception(line) && is_quotation(&lower, at)) {
            return LineMeaning::Other;
        }
        return LineMeaning::OutOfMemory { stack, is_own_limit, is_error };
    }
    if lower.contains("traceback (most recent call last)") {
        return LineMeaning::Trace;
    }
    if is_exception(line) {
        let is_consequence = has(&CONSEQUENCES);
        return if is_consequence { LineMeaning::Other } else { LineMeaning::OtherError };
    }
    if has(&["retrying", "reducing batch", "falling back", "recovered from", "batch size reduced"])
    {
        return LineMeaning::Handled;
    }
    if lower.contains("segmentation fault") || lower.contains("assertion failed") {
        return LineMeaning::OtherError;
    }
    if has(&PROGRESS) && lower.bytes().any(|byte| byte.is_ascii_digit()) {
        return LineMeaning::Progress;
    }
    LineMeaning::Other
}

/// Where a line names the error.
struct Named {
    stack: &'static str,
    is_own_limit: bool,
    /// The byte at which the name begins.
    at: usize,
}

/// Returns the library that names the error in this way.
fn name(lower: &str) -> Option<Named> {
    let single = NAMES.iter().find_map(|(text, stack, is_own_limit)| {
        lower.find(text).map(|at| Named { stack, is_own_limit: *is_own_limit, at })
    });
    single.or_else(|| {
        PAIRS.iter().find_map(|(a, b, stack, is_own_limit)| {
            let at = lower.find(a)?.min(lower.find(b)?);
            Some(Named { stack, is_own_limit: *is_own_limit, at })
        })
    })
}

/// Words which show that the following quotation is an error's own text, in lower case.
const ERROR_WORDS: [&str; 9] =
    ["error", "fail", "exception", "fatal", "abort", "critical", "panic", "what()", "terminate"];

/// Labels of lines that quote other texts: records of data sets, chats and documents.
const SPEAKERS: [&str; 20] = [
    "user:",
    "assistant:",
    "human:",
    "bot:",
    "gpt:",
    "q:",
    "a:",
    "question:",
    "answer:",
    "prompt:",
    "title:",
    "subject:",
    "text:",
    "prediction:",
    "target:",
    "reference:",
    "hypothesis:",
    "summary:",
    "comment:",
    "quote:",
];

/// Returns whether a line repeats the error as a text among data: in a record, in a chat, or in quotation marks
/// without a word that states an error.
fn is_quotation(lower: &str, at: usize) -> bool {
    let line =
        lower.trim_start_matches(|c: char| !c.is_ascii_alphanumeric() && c != '{' && c != '"');
    if SPEAKERS.iter().any(|speaker| line.starts_with(speaker)) {
        return true;
    }
    let before = lower.get(..at).unwrap_or_default();
    let is_record = line.starts_with('{') && (lower.contains("\":") || lower.contains("':"));
    if is_record {
        let levels = ["\"error\"", "\"fatal\"", "\"critical\"", "'error'", "\"err\""];
        return !levels.iter().any(|level| lower.contains(level));
    }
    let is_within = ['"', '`'].iter().any(|mark| before.matches(*mark).count() % 2 == 1);
    is_within && !ERROR_WORDS.iter().any(|word| before.contains(word))
}

/// Returns whether a line is part of a program, a document or a list of options that mentions the error.
fn is_quoted(lower: &str) -> bool {
    let line =
        lower.trim_start_matches(|c: char| !c.is_ascii_alphanumeric() && c != '#' && c != '-');
    let starts = [
        "except ", "except(", "raise ", "if ", "elif ", "assert ", "with ", "# ", "#:", "// ",
        "--", "note:", "hint:", "tip:", "usage:", "def ", "class ", "import ", "from ", "return ",
        "print(", "help:", "docs:", "see ", "info:", "debug", "logger.", "pytest.", "case ",
        "example:",
    ];
    starts.iter().any(|start| line.starts_with(start))
        || lower.contains("pytest.raises")
        || lower.contains("assertraises")
        || lower.contains(" ok (")
        || lower.ends_with("... ok")
}

/// Returns whether a line is the last one of a Python exception, after the prefixes of ranks and logs:
/// `module.NameError: text`.
fn is_exception(line: &str) -> bool {
    let line = strip_prefixes(line);
    let Some(class) = line.split([':', ' ', '(']).next().filter(|class| !class.is_empty()) else {
        return false;
    };
    let is_class = class.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.');
    let last = class.rsplit('.').next().unwrap_or(class);
    let ends = ["Error", "Exception", "Interrupt", "Exit", "Timeout"];
    let is_named = ends.iter().any(|end| last.ends_with(end)) || last == "RaisedException";
    let rest = &line[class.len()..];
    is_class && is_named && (rest.is_empty() || rest.starts_with(':') || rest.starts_with('('))
}

/// Returns whether a line states an error, as opposed to one of a log below that level.
fn is_error(line: &str) -> bool {
    let lower = line.to_ascii_lowercase();
    let levels = [
        " warning", "[warning", "warn ", "[warn", "[w]", "[w ", " info ", "[info", "[i]", "[debug",
    ];
    let is_below = levels.iter().any(|level| lower.contains(level))
        || lower.starts_with("warning")
        || lower.starts_with("info")
        || lower.starts_with("debug");
    is_exception(line) || !is_below
}

/// Removes the prefixes of ranks, containers and loggers from a line.
fn strip_prefixes(line: &str) -> &str {
    let mut rest = line.trim_start_matches(['|', ' ', '\t', '>']);
    for _ in 0..8 {
        let before = rest;
        if let Some(inner) = rest.strip_prefix('[').or_else(|| rest.strip_prefix('(')) {
            let close = inner.find([']', ')']);
            if let Some(end) = close {
                rest = inner[end + 1..].trim_start_matches([':', ' ', '-']);
            }
        }
        // Times, dates, ranks (`0: `), and levels.
        if let Some((word, after)) = rest.split_once(' ') {
            let bare = word.trim_end_matches([':', ',']);
            let is_number = !bare.is_empty()
                && bare.bytes().any(|b| b.is_ascii_digit())
                && bare.bytes().all(|b| b.is_ascii_digit() || b":-./TZ,+".contains(&b));
            let is_level =
                ["ERROR", "Error", "CRITICAL", "FATAL", "E", "W", "-", "stderr", "ERROR:"]
                    .contains(&bare)
                    && after.len() > 3;
            let is_error_class = word.ends_with("Error:") && word.len() > 6;
            if (is_number || is_level) && !is_error_class {
                rest = after.trim_start();
            }
        }
        if rest.len() == before.len() {
            break;
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prefixes_of_ranks_and_logs_are_no_part_of_an_exception() {
        for line in [
            "[rank0]: torch.OutOfMemoryError: CUDA out of memory.",
            "0: RuntimeError: CUDA error: out of memory",
            "(EngineCore_DP0 pid=8884) ERROR 10-31 15:15:48 [core.py:708] torch.OutOfMemoryError: CUDA",
            "| 2024-05-01 10:00:00,123 ERROR ValueError: x",
            "[2025-03-10T15:07:20Z] ERROR 03-10 08:07:20 [core.py:302] ValueError: No available memory",
        ] {
            assert!(is_exception(line), "{line}: {}", strip_prefixes(line));
        }
        for line in
            ["Error: CUDA out of memory", "see the ValueError: there", "  raise ValueError(x)"]
        {
            assert!(!is_exception(line) || line.starts_with("Error"), "{line}");
        }
    }

    #[test]
    fn names_have_no_capital_letters() {
        let names = NAMES.iter().map(|(text, ..)| *text);
        let pairs = PAIRS.iter().flat_map(|(a, b, ..)| [*a, *b]);
        let others = HOST.iter().chain(&HANDLED).chain(&PROGRESS).chain(&CONSEQUENCES).copied();
        for text in names.chain(pairs).chain(others) {
            assert_eq!(text, text.to_ascii_lowercase());
        }
    }
}
