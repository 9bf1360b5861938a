//! What happened, with one JSON object per line: every call, and every operation of the device.
//!
//! ```text
//! {"call":"cuLaunchKernel","thread":4711,"at":…,"took":…,"result":0,"args":{"f":…}}
//! {"op":"kernel","name":"gemm","context":1,"stream":3,"seq":17,"queued":…,"start":…,"end":…,"spans":[[…,…]]}
//! ```
//!
//! Times are nanoseconds of the machine's monotonic clock; those of operations are the device's,
//! which is virtual if its clock is.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

use crate::abi::CudaCode;
use crate::clock::monotonic_nanos;

/// The trace of this process.
pub struct CallTrace(File);

pub struct CompletedOperation<'o> {
    pub kind: &'static str,
    pub name: &'o str,
    pub context: u64,
    pub stream: u64,
    pub seq: u64,
    pub queued: u64,
    pub start: u64,
    pub end: u64,
    pub spans: &'o [(u64, u64)],
}

impl CallTrace {
    /// Begins the trace of this process in a folder.
    pub fn open(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let path = folder.join(format!("cuda-{}.jsonl", std::process::id()));
        Ok(Self(File::options().create(true).append(true).open(path)?))
    }

    /// Records a call.
    pub fn call(&self, name: &str, args: &[(&str, u64)], at: u64, code: CudaCode) {
        let took = monotonic_nanos().saturating_sub(at);
        let thread = rustix::thread::gettid().as_raw_nonzero();
        let mut line = format!(
            r#"{{"call":"{name}","thread":{thread},"at":{at},"took":{took},"result":{},"args":{{"#,
            code.0
        );
        for (index, (name, value)) in args.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            // Into a string, which takes everything.
            let _ = write!(line, r#"{comma}"{name}":{value}"#);
        }
        self.line(line + "}}\n");
    }

    /// Records a completed operation.
    pub fn over(&self, over: &CompletedOperation<'_>) {
        let CompletedOperation { kind, name, context, stream, seq, queued, start, end, spans } =
            over;
        let spans: Vec<_> = spans.iter().map(|(from, until)| format!("[{from},{until}]")).collect();
        let spans = spans.join(",");
        // Kernel names may hold anything.
        let name = name.replace('\\', "\\\\").replace('"', "\\\"");
        self.line(format!(
            r#"{{"op":"{kind}","name":"{name}","context":{context},"stream":{stream},"seq":{seq},"queued":{queued},"start":{start},"end":{end},"spans":[{spans}]}}
"#
        ));
    }

    /// A line is one write, so that lines of threads never mix, and none is lost with the
    /// process.
    fn line(&self, line: String) {
        // A trace that can't be written mustn't change what the program sees.
        let _ = (&self.0).write_all(line.as_bytes());
    }
}
