//! Slurm, started privately: its controller and one node's daemon in their own folder.
//!
//! Its settings are those that start jobs fastest among what was tried (version 22.05). There is no
//! delay between an end and the next round, each round looks at every job, and there is no
//! accounting, containment or authentication. A round still comes once a second at most, and starts as many
//! jobs as there are free places.

use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

use crate::wait;

/// Approximate length of a measurement: at one round a second, more jobs only take longer.
const ROUNDS: usize = 30;

/// Measures how many tasks of one array a second go through one node of `places` processors;
/// their outputs are discarded.
///
/// # Errors
///
/// If Slurm's programs are not installed or do not do their part.
pub fn slurm_throughput(places: usize) -> anyhow::Result<f64> {
    let slurm = Slurm::start(places)?;
    let tasks = places * ROUNDS;
    let started = Instant::now();
    let range = format!("--array=1-{tasks}");
    let submit =
        ["-p", "all", "-n", "1", &range, "-o", "/dev/null", "-e", "/dev/null", "--wrap=/bin/true"];
    slurm.run_command("sbatch", &submit)?;
    let limit = Duration::from_secs(60) + Duration::from_secs(u64::try_from(ROUNDS)?) * 10;
    wait::until_every(Duration::from_millis(200), limit, "every task of the array ended", || {
        slurm.run_command("squeue", &["-h", "-o", "%i"]).ok().filter(|left| left.trim().is_empty())
    });
    Ok(f64::from(u32::try_from(tasks)?) / started.elapsed().as_secs_f64())
}

/// The two daemons; they end with it.
struct Slurm {
    folder: tempfile::TempDir,
    daemons: Vec<Child>,
}

impl Slurm {
    fn start(places: usize) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let conf = folder.path().join("slurm.conf");
        fs::create_dir(folder.path().join("state"))?;
        fs::create_dir(folder.path().join("spool"))?;
        fs::write(&conf, configuration(folder.path(), places)?)?;
        let mut slurm = Self { folder, daemons: Vec::new() };
        for (program, more) in [("slurmctld", &["-c"][..]), ("slurmd", &["-N", "one"][..])] {
            let child = Command::new(program_path(program)?)
                .args(["-D", "-f"])
                .arg(&conf)
                .args(more)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .with_context(|| format!("{program} did not start"))?;
            slurm.daemons.push(child);
        }
        wait::until_every(
            Duration::from_millis(200),
            Duration::from_secs(60),
            "Slurm's node is idle",
            || {
                slurm
                    .run_command("sinfo", &["-h", "-o", "%t"])
                    .ok()
                    .filter(|state| state.trim() == "idle")
            },
        );
        Ok(slurm)
    }

    fn run_command(&self, program: &str, arguments: &[&str]) -> anyhow::Result<String> {
        let answer = Command::new(program_path(program)?)
            .env("SLURM_CONF", self.folder.path().join("slurm.conf"))
            .args(arguments)
            .output()?;
        let errors = String::from_utf8_lossy(&answer.stderr);
        ensure!(answer.status.success(), "{program} failed: {errors}");
        Ok(String::from_utf8(answer.stdout)?)
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        for daemon in &mut self.daemons {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

/// Daemons are in folders that are not in an ordinary user's PATH.
fn program_path(program: &str) -> anyhow::Result<PathBuf> {
    let folders = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"];
    let found = folders.iter().map(|folder| Path::new(folder).join(program)).find(|p| p.exists());
    match found {
        Some(path) => Ok(path),
        None => bail!("{program} is missing; on Debian: apt-get install slurmctld slurmd"),
    }
}

fn configuration(folder: &Path, places: usize) -> anyhow::Result<String> {
    let host = fs::read_to_string("/proc/sys/kernel/hostname")?;
    let (host, folder) = (host.trim(), folder.display());
    let (ctld, daemon) = (free_port()?, free_port()?);
    Ok(format!(
        "ClusterName=measured
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmctldPort={ctld}
SlurmdPort={daemon}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_interval=1,default_queue_depth=10000
SlurmdParameters=config_overrides
MaxArraySize=100001
MaxJobCount=200000
MinJobAge=2
ReturnToService=2
NodeName=one NodeHostname={host} NodeAddr=127.0.0.1 CPUs={places} Boards=1 SocketsPerBoard=1 \
CoresPerSocket={places} ThreadsPerCore=1 RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes=one Default=YES MaxTime=INFINITE State=UP
"
    ))
}

/// A port that nothing uses now.
fn free_port() -> anyhow::Result<u16> {
    loop {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        if UdpSocket::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
}
