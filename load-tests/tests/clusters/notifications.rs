//! Mail and webhooks about jobs, through a real receiver and a real program in place of `sendmail`.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use ring::hmac;
use serde_json::Value;
use tempfile::TempDir;
use tessera_load_tests::cluster::{Cluster, Plan, SOON, command};
use tessera_load_tests::{console, wait};

const SECRET: &str = "a secret of enough bytes";

/// How a receiver answers a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    Accept,
    Fail,
    Hang,
}

/// A request that a receiver got.
#[derive(Clone, Debug)]
struct Received {
    id: String,
    signature: String,
    body: String,
    accepted: bool,
}

impl Received {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    /// Returns whether the request was signed with a secret, as the documentation states.
    fn is_signed_with(&self, secret: &str) -> bool {
        let (at, signature) = self.signature.split_once(",v1=").unwrap();
        let at = at.strip_prefix("t=").unwrap();
        let bytes: Vec<_> = (0..signature.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&signature[at..at + 2], 16).unwrap())
            .collect();
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        hmac::verify(&key, format!("{at}.{}", self.body).as_bytes(), &bytes).is_ok()
    }
}

/// A receiver of webhooks with its own socket.
struct Receiver {
    address: SocketAddr,
    answer: Arc<Mutex<Answer>>,
    received: Arc<Mutex<Vec<Received>>>,
}

impl Receiver {
    fn start(first: Answer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let receiver = Self {
            address: listener.local_addr().unwrap(),
            answer: Arc::new(Mutex::new(first)),
            received: Arc::default(),
        };
        let (answer, received) = (Arc::clone(&receiver.answer), Arc::clone(&receiver.received));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (answer, received) = (Arc::clone(&answer), Arc::clone(&received));
                std::thread::spawn(move || serve(&stream, &answer, &received));
            }
        });
        receiver
    }

    fn answers(&self, answer: Answer) {
        *self.answer.lock().unwrap() = answer;
    }

    fn requests(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }

    /// The accepted states of a job, in the order in which they were written.
    fn states(&self, job: u64) -> Vec<String> {
        let accepted = self.requests().into_iter().filter(|request| request.accepted);
        let mut of_job: Vec<_> =
            accepted.map(|request| request.json()).filter(|body| body["job"] == job).collect();
        of_job.sort_by_key(|body| body["sequence"].as_u64());
        of_job.dedup_by_key(|body| body["id"].to_string());
        of_job.iter().map(|body| body["state"].as_str().unwrap().to_owned()).collect()
    }

    /// Waits for notices of these states. A failed notice is sent again, possibly after later notices.
    #[track_caller]
    fn wait_for(&self, job: u64, awaited: &[&str]) {
        wait::until(2 * SOON, "the notices of the job", || {
            let states = self.states(job);
            awaited.iter().all(|state| states.iter().any(|known| known == state)).then_some(())
        });
    }

    /// Waits until all refused notices have been accepted later.
    #[track_caller]
    fn wait_for_retries(&self) {
        wait::until(2 * SOON, "the retries of what failed", || {
            let requests = self.requests();
            let came = |id: &str| requests.iter().any(|other| other.accepted && other.id == id);
            requests.iter().all(|request| came(&request.id)).then_some(())
        });
    }
}

/// Serves the requests of one connection.
fn serve(stream: &TcpStream, answer: &Mutex<Answer>, received: &Mutex<Vec<Received>>) {
    let mut reader = BufReader::new(stream);
    while let Some(mut request) = read_request(&mut reader) {
        let answer = *answer.lock().unwrap();
        request.accepted = answer == Answer::Accept;
        received.lock().unwrap().push(request);
        let line = match answer {
            Answer::Accept => "204 No Content",
            Answer::Fail => "503 Service Unavailable",
            // The client's process ends first.
            Answer::Hang => continue,
        };
        let mut stream = stream;
        let _ = write!(stream, "HTTP/1.1 {line}\r\ncontent-length: 0\r\n\r\n");
    }
}

fn read_request(reader: &mut BufReader<&TcpStream>) -> Option<Received> {
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end() {
            "" => break,
            line => headers.push(line.to_ascii_lowercase()),
        }
    }
    let header = |name: &str| {
        let found = headers.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        found.unwrap_or_default().to_owned()
    };
    let mut body = vec![0; header("content-length").parse().unwrap()];
    reader.read_exact(&mut body).ok()?;
    Some(Received {
        id: header("tessera-event-id"),
        signature: header("tessera-signature"),
        body: String::from_utf8(body).unwrap(),
        accepted: false,
    })
}

/// A cluster with settings for notifications.
fn cluster(folder: &TempDir, settings: &str) -> Cluster {
    let file = folder.path().join("controller.toml");
    fs::write(&file, settings).unwrap();
    let plan = Plan::new().node("n1", "a30-24gb");
    plan.env("TESSERA_CONTROLLER_CONFIG", file.display().to_string()).start()
}

fn webhook(folder: &TempDir, receiver: &Receiver, more: &str) -> String {
    let secret = folder.path().join("secret");
    fs::write(&secret, format!("{SECRET}\n")).unwrap();
    format!(
        "[webhook]\nurl = \"http://{}/hook\"\nsecret-file = {secret:?}\n{more}",
        receiver.address
    )
}

#[test]
fn every_state_change_reaches_a_receiver_that_fails_first() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(Answer::Fail);
    let cluster = cluster(&folder, &webhook(&folder, &receiver, ""));
    let job = cluster.submit(&command(["true"])).job_id;
    cluster.wait_end(job, SOON);
    wait::until(SOON, "a request", || receiver.requests().first().cloned());
    receiver.answers(Answer::Accept);

    receiver.wait_for(job, &["queued", "running", "succeeded"]);
    receiver.wait_for_retries();

    let states = receiver.states(job);
    assert_eq!(
        (states.first().unwrap().as_str(), states.last().unwrap().as_str()),
        ("queued", "succeeded")
    );
    assert!(states.iter().any(|state| state == "running"), "{states:?}");
    let requests = receiver.requests();
    let failed: Vec<_> = requests.iter().filter(|request| !request.accepted).collect();
    assert!(!failed.is_empty());
    for failed in failed {
        // The same notice under the same id, and signed again.
        let again = requests.iter().find(|other| other.accepted && other.id == failed.id).unwrap();
        assert_eq!(again.json(), failed.json());
    }
    for request in &requests {
        assert!(request.is_signed_with(SECRET) && !request.is_signed_with("another secret"));
        assert_eq!(request.json()["id"], request.id);
    }
    let last =
        requests.iter().map(Received::json).find(|body| body["state"] == "succeeded").unwrap();
    assert_eq!((&last["outcome"], &last["exit_code"]), (&"succeeded".into(), &"0:0".into()));
    let figures = cluster.call("GET", "/metrics", None).expect(200).text();
    assert!(
        figures.contains("tessera_notifications_total{channel=\"webhook\",result=\"failed\"}"),
        "{figures}"
    );
}

#[test]
fn a_notice_outlives_a_controller_that_is_killed_before_it_is_delivered() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(Answer::Hang);
    let settings = webhook(&folder, &receiver, "states = [\"running\", \"succeeded\"]\n");
    let mut cluster = cluster(&folder, &settings);
    let job = cluster.submit(&command(["true"])).job_id;
    cluster.wait_end(job, SOON);
    let hung = wait::until(SOON, "a request that hangs", || receiver.requests().first().cloned());

    cluster.controller.kill();
    receiver.answers(Answer::Accept);
    cluster.controller.start();

    receiver.wait_for(job, &["running", "succeeded"]);
    assert_eq!(receiver.states(job), ["running", "succeeded"]);
    let requests = receiver.requests();
    assert!(requests.iter().any(|request| request.accepted && request.id == hung.id));
}

/// Settings with a program in place of `sendmail` that fails once, and then keeps each mail in a file.
fn mail(folder: &Path) -> String {
    let program = folder.join("sendmail");
    fs::write(
        &program,
        "#!/bin/sh\nif mkdir \"$1/failed\" 2>/dev/null; then echo the queue is full >&2; exit 75; fi\n\
         cat > \"$1/part.$$\" && mv \"$1/part.$$\" \"$1/$$.mail\"\n",
    )
    .unwrap();
    let command =
        ["/bin/sh".to_owned(), program.display().to_string(), folder.display().to_string()];
    format!("[mail]\ncommand = {command:?}\nfrom = \"tessera@example.org\"\n")
}

/// The mails that were sent.
fn mails(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    let mails = entries.filter(|path| path.extension().is_some_and(|kind| kind == "mail"));
    mails.map(|path| fs::read_to_string(path).unwrap()).collect()
}

fn with_line<'m>(mails: &'m [String], line: &str) -> Vec<&'m String> {
    mails.iter().filter(|mail| mail.lines().any(|found| found == line)).collect()
}

#[track_caller]
fn wait_for_mail(folder: &Path, line: &str) -> String {
    wait::until(SOON, line, || with_line(&mails(folder), line).first().map(|mail| (*mail).clone()))
}

#[test]
fn users_get_the_mail_that_their_scripts_request_also_if_the_mail_program_fails_first() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = cluster(&folder, &mail(folder.path()));
    let file = folder.path().join("job.sh");
    let submit = |text: &str| {
        fs::write(&file, text).unwrap();
        let said = console::done(&cluster, &["submit", file.to_str().unwrap()]);
        assert!(!said.contains("mail"), "{said}");
        said.trim().rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };

    let array = submit(
        "#!/bin/sh\n#SBATCH --array=0-2 --mail-type=BEGIN,FAIL -J sweep\nexit $((SLURM_ARRAY_TASK_ID % 2))\n",
    );
    let ended = format!("Subject: Tessera array {array} (sweep) ended, 1 of 3 tasks failed");
    let of_array = wait_for_mail(folder.path(), &ended);
    let job =
        submit("#!/bin/sh\n#SBATCH --mail-type=END --mail-user=bob@example.org,eve@example.org\n");
    let ended = format!("Subject: Tessera job {job} (job.sh) ended as succeeded");
    let of_job = wait_for_mail(folder.path(), &ended);

    // The submitter is the default.
    assert!(of_array.lines().any(|line| line == "To: <ada>"), "{of_array}");
    for line in ["To: <bob@example.org>, <eve@example.org>", "From: <tessera@example.org>"] {
        assert!(of_job.lines().any(|found| found == line), "{of_job}");
    }
    assert!(of_job.contains("Exit code: 0:0"), "{of_job}");
    let began = format!("Subject: Tessera array {array} (sweep) began");
    wait_for_mail(folder.path(), &began);
    assert!(folder.path().join("failed").exists());
    // One mail for the start of the array, one for its end, and one for the job.
    assert_eq!(mails(folder.path()).len(), 3, "{:#?}", mails(folder.path()));
}

#[test]
fn a_mail_about_a_part_of_the_time_limit_follows_the_limit_and_not_an_attempt_that_ended() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("failed")).unwrap();
    let cluster = cluster(&folder, &mail(folder.path()));
    let limits = ["--mail-type", "time_limit_50,time_limit_80"];
    let submit = |limit: &str, program: &[&str]| {
        let words = [&["submit", "--time", limit], &limits[..], &["--"], program].concat();
        let said = console::done(&cluster, &words);
        said.trim().rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    let short = submit("1:00:00", &["true"]);
    let long = submit("1:00:00", &["sleep", "600"]);
    cluster.wait_end(short, SOON);
    cluster.wait_job(long, SOON, "running");

    // Half of the new limit has passed soon.
    console::done(&cluster, &["update", &long.to_string(), "--time", "0:10"]);

    wait_for_mail(
        folder.path(),
        &format!("Subject: Tessera job {long} (sleep) has run for 50 % of its time limit"),
    );
    assert!(!mails(folder.path()).iter().any(|mail| mail.contains(&format!("job {short} "))));
}

#[test]
fn a_cluster_without_mail_reports_that_once_at_submit() {
    let cluster = Plan::new().node("n1", "a30-24gb").start();

    let said = console::done(&cluster, &["submit", "--mail-type", "end", "--", "true"]);

    assert_eq!(said.matches("no mail is sent").count(), 1, "{said}");
    let quiet = console::done(&cluster, &["submit", "--", "true"]);
    assert!(!quiet.contains("mail"), "{quiet}");
    for wrong in ["often", "end,often"] {
        let ended = console::tessera(&cluster, &["submit", "--mail-type", wrong, "--", "true"]);
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(!ended.status.success() && said.contains("one of begin"), "{said}");
    }
    let to = ["submit", "--mail-type", "end", "--mail-user", "a\nBcc: eve", "--", "true"];
    assert!(console::refused(&cluster, &to).contains("ada@example.org"));
}
