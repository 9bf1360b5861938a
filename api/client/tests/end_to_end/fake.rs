//! An HTTP server that returns what a test sets, and records the requests.

#![allow(dead_code, reason = "two test programs share this file, and neither uses all of it")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};

/// One request, as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Method and path with query: `GET /v1/jobs?limit=1`.
    pub line: String,
    /// Header lines in lower case.
    pub headers: Vec<String>,
    pub body: String,
}

impl Request {
    /// Returns a header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

/// One answer.
#[derive(Clone, Debug)]
pub struct Answer {
    status: u16,
    headers: String,
    body: String,
}

impl Answer {
    /// Answers with JSON.
    pub fn json(body: Value) -> Self {
        Self { status: 200, headers: String::new(), body: body.to_string() }
    }

    /// Answers with plain text.
    pub fn text(body: &str) -> Self {
        Self { status: 200, headers: String::new(), body: body.to_owned() }
    }

    /// Refuses with a problem.
    pub fn problem(status: u16, detail: &str) -> Self {
        let body = json!({
            "type": "urn:tessera:problem:test", "title": "refused", "status": status,
            "detail": detail,
        });
        Self { status, ..Self::json(body) }
    }

    /// Adds a header.
    pub fn header(mut self, line: &str) -> Self {
        self.headers.push_str(&format!("{line}\r\n"));
        self
    }
}

/// A running server; it ends with the test's process.
pub struct Fake {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Request>>>,
}

impl Fake {
    /// Starts a server that answers request number `n` (from 0) with `answer(n, request)`.
    pub fn start(answer: impl Fn(usize, &Request) -> Answer + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Self::serve(listener, answer)
    }

    /// The same at a given address.
    pub fn serve(
        listener: TcpListener,
        answer: impl Fn(usize, &Request) -> Answer + Send + 'static,
    ) -> Self {
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&seen);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let Some(request) = read(&stream) else { continue };
                let number = kept.lock().unwrap().len();
                let answer = answer(number, &request);
                kept.lock().unwrap().push(request);
                write(stream, &answer);
            }
        });
        Self { address, seen }
    }

    /// Returns where it listens.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the requests that it got so far.
    pub fn seen(&self) -> Vec<Request> {
        self.seen.lock().unwrap().clone()
    }

    /// Returns the request lines so far.
    pub fn lines(&self) -> Vec<String> {
        self.seen().into_iter().map(|request| request.line).collect()
    }
}

fn read(stream: &TcpStream) -> Option<Request> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|length| *length > 0)?;
    let mut headers = Vec::new();
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        match header.trim_end() {
            "" => break,
            header => headers.push(header.to_owned()),
        }
    }
    // Names of headers have no case; values keep theirs.
    let lower = |header: &String| match header.split_once(':') {
        Some((name, value)) => format!("{}:{value}", name.to_ascii_lowercase()),
        None => header.clone(),
    };
    let headers: Vec<String> = headers.iter().map(lower).collect();
    let line = line.trim_end().trim_end_matches(" HTTP/1.1").to_owned();
    let request = Request { line, headers, body: String::new() };
    let length = request.header("content-length").and_then(|length| length.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).ok()?;
    Some(Request { body: String::from_utf8(body).ok()?, ..request })
}

fn write(mut stream: TcpStream, answer: &Answer) {
    let Answer { status, headers, body } = answer;
    let head = format!(
        "HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n",
        body.len()
    );
    // A client that has gone away is part of some tests.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
}

/// Returns a job as the API shows it.
pub fn job(id: u64, state: &str, short: &str, exit_code: Option<&str>) -> Value {
    json!({
        "id": id, "name_id": id.to_string(), "array_id": null, "array_index": null,
        "name": "train", "user": "ada", "state": state, "state_short": short,
        "reason": null, "reason_text": null, "gpu_request": "any slice", "class": "offline",
        "priority": 5, "submitted_at": "2026-01-01T00:00:00Z", "started_at": null,
        "ended_at": null, "exit_code": exit_code, "attempts": 1, "node": null, "gpu": null,
        "gpu_index": null, "slice": null, "profile": null,
    })
}

/// Returns a job with everything that is known about it.
pub fn detail(id: u64, state: &str, short: &str, exit_code: Option<&str>) -> Value {
    let mut job = job(id, state, short, exit_code);
    let more = json!({
        "program": "true", "work_dir": null, "env_names": [], "time_limit_secs": null,
        "queue_rank": { "priority": 5 }, "retries_left": 0, "traceparent": null, "attempt_list": [],
    });
    job.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    job
}
